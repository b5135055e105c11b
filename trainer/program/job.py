"""The job of a trainer: this node's agent on a thread, and what its end means for the program."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any

from ...agent.errors import AgentError, StoreLost, UsageError
from ...agent.exit_status import NO_RESTART
from ...agent.report import AgentEvent
from ...launcher.api import Module, NodeAgent
from ...launcher.config.config import LaunchConfig
from ...proto.frozen import replace
from ...rendezvous.endpoint import parse_endpoint
from ...rendezvous.failures import PASSIVE, WorkerFailure, looks_like_an_echo
from ...rendezvous.text import count
from ..errors import Diverged, TrainingFailed, WrongReturn
from .call_server import CallServer
from .resources import Room
from .retries import Retries

log = logging.getLogger("elastic_agent")
ENDPOINT_ROUNDS = 3
"""How often all endpoints are tried, without a round in between, before a lost store ends the job."""
LOOK_S = 2.0
"""How long a host gets to accept a connection when one is looked for."""
ENTRY = "elastic_agent.trainer.in_worker.entry"
_REFUSALS: dict[str, type[AgentError]] = {
    "Diverged": Diverged,
    "UsageError": WrongReturn,
    **dict.fromkeys(("Misused", "NotResumable", "WrongReturn", "WrongState"), WrongReturn),
}
"""Exceptions of workers -> those of the program."""


class Job:
    """Begins when it is made."""

    def __init__(
        self,
        config: LaunchConfig,
        call_server: CallServer,
        room: Room,
        max_retries: int,
        endpoints: Sequence[str],
        lasts: bool,
    ) -> None:
        """room: for this node's workers; where there is none, waits for it. max_retries: failures of workers that are
        answered with a restart before the first call. endpoints: where nodes may find each other, one after the other
        as their hosts are lost. lasts: whether what workers save is of use behind this program's end. Raises what
        NodeAgent raises."""
        self._call_server, self._room, self._lasts = call_server, room, lasts
        self._lock = threading.Lock()
        self._retries = Retries(max_retries, config.max_nodes > 1)
        self._former = 0
        """Restarts of this node's former agents."""
        self._failures: list[WorkerFailure] = []
        self._counted: WorkerFailure | None = None
        """The newest failure of the present call, of any node, that was answered with a restart."""
        self._exceeded = False
        self._stopping = False
        self.error: BaseException | None = None
        """Why it ended; None while it has not, and where it ended well."""
        self._config, self._endpoints = config, endpoints
        self._agent = self._make_agent()
        self._thread = threading.Thread(target=self._run, name="trainer-agent", daemon=True)
        self._watch = threading.Thread(target=room.watch, args=(self._resize,), name="trainer-room", daemon=True)
        self._thread.start()
        if room.changes:
            call_server.on_look = self._look
            self._watch.start()
        self._pid = os.getpid()
        atexit.register(self.leave)

    @property
    def running(self) -> bool:
        """Whether the job has not ended, and does not wait for resources."""
        return self._thread.is_alive() and self._room.used > 0

    @property
    def name(self) -> str:
        """What other nodes call this one."""
        return self._agent.name

    def allow(self, max_retries: int) -> None:
        """From now on so many failures are answered with a restart."""
        with self._lock:
            self._retries.allow(max_retries)
            self._failures.clear()
            self._counted = None

    def leave(self) -> None:
        """The program ends, perhaps to be started again: stop the workers, which first save where that lasts."""
        self.stop(force=not self._lasts)

    def stop(self, force: bool) -> None:
        """Stop the workers, at once with `force`, and wait for their end. May be called again. In a process that was
        forked from the program, nothing: the workers are not its own."""
        if os.getpid() != self._pid:
            return
        self._stopping = True
        self._room.close()
        if self._thread.is_alive():
            self._agent.stop()
            if force:
                self._agent.stop()
        self.wait()

    def wait(self) -> None:
        """Until the workers have ended, as they were asked to."""
        atexit.unregister(self.leave)
        self._thread.join()
        self._room.close()
        if self._watch.ident is not None:
            self._watch.join()

    def _look(self) -> bool:
        """Before a pass: whether another round was asked for, as there are resources for another number of workers."""
        try:
            used, room = self._room.used, self._room.look()
        except UsageError as error:
            log.warning("%s; the number of workers stays", error)
            return False
        return room != used and self._resize(used, room)

    def _resize(self, used: int, room: int) -> bool:
        """Ask all workers of the job to save at their next batch and to be started again; whether that was possible."""
        try:
            self._agent.restart_round(f"this node has resources for {count(room, 'worker')}, and had for {used}")
        except UsageError as error:
            log.info("the number of workers stays: %s", error)
            return False
        return True

    def _make_agent(self) -> NodeAgent:
        self._room.wait()
        config = self._config
        if self._endpoints:
            config = replace(config, rdzv_endpoint=reachable(self._endpoints))
        return NodeAgent(config, Module(ENTRY), on_event=self._happened)

    def _run(self) -> None:
        """Until the job has ended. Where the host of its store is lost, it goes on with the other nodes on another
        host; where this node has resources for no worker, when it has some again."""
        failed_endpoints = 0
        try:
            while True:
                round_before = self._call_server.rounds
                try:
                    self._agent.run()
                    break
                except StoreLost as error:
                    failed_endpoints = 0 if self._call_server.rounds > round_before else failed_endpoints + 1
                    if self._stopping or failed_endpoints >= ENDPOINT_ROUNDS * len(self._endpoints):
                        raise
                    log.warning("the host of the store is lost (%s); trying the other endpoints", error)
                except UsageError:
                    if self._stopping or self._room.used:
                        raise
                self._begin_again()
        except BaseException as error:  # noqa: BLE001 - it is raised again wherever the program calls
            self.error = error
        why = self._why()
        self._call_server.end(lambda: why)

    def _begin_again(self) -> None:
        """With another agent. Raises what NodeAgent raises, and HostFailed."""
        self._call_server.left()
        agent = self._make_agent()
        with self._lock:
            self._agent, self._former = agent, self._retries.used
        if self._stopping:
            agent.stop()

    def _happened(self, event: AgentEvent) -> None:
        with self._lock:
            if event.failure is not None:
                self._failures.append(event.failure)
            ended = event.ended
            if ended is not None and ended.charged and ended.failure and ended.failure.exit_code != NO_RESTART:
                self._counted = ended.failure
            exceeded = self._retries.exceeded(self._former + event.restarts_used, self._call_server.rounds)
            if exceeded and not self._exceeded:
                self._exceeded = True
                self._agent.stop()

    def _why(self) -> BaseException:
        """What calls raise from now on."""
        error = self.error
        if self._exceeded:
            return self._failed(f"failed more often than max_retries={self._retries.allowed} allows")
        if error is None and not self._call_server.rounds:
            return UsageError("the job has ended without this node, which was a spare: it has nothing to train")
        if error is None:
            return UsageError("the trainer is shut down; make another one")
        if self._stopping:
            return UsageError("the trainer was shut down while a call was going on; make another one")
        cause = getattr(error, "cause", None)
        if cause is not None and cause.exit_code == NO_RESTART:
            return self._refused(cause, str(error), getattr(error, "traceback", ""))
        if cause is not None:
            return self._failed("failed", cause)
        return error

    def _refused(self, cause: WorkerFailure, text: str, traceback: str) -> BaseException:
        """Of a failure that another start would only repeat."""
        told = self._told_by(cause)
        kind, _, message = (told["message"] if told else cause.message or text).partition(": ")
        if kind == "TooManyRestarts" and (counted := self._counted) is not None:
            # Not the worker that has counted, but the one that failed, whose traceback every node has.
            cause, told, traceback = counted, self._told_by(counted), ""
        traceback = (told["traceback"] if told else traceback or cause.said).rstrip()
        where = f"(rank {cause.rank} on {cause.node})"
        if kind in _REFUSALS:
            return _REFUSALS[kind](f"{message} {where}")
        if kind == "StateLost":
            return TrainingFailed(f"{message} {where}", cause=cause)
        if kind == "TooManyRestarts":
            return TrainingFailed(f"{message} {where}\n{traceback}", cause=cause, traceback=traceback)
        return TrainingFailed(f"{kind}: {message} {where}\n{traceback}", cause=cause, traceback=traceback)

    def _told_by(self, cause: WorkerFailure) -> dict[str, Any] | None:
        """What this worker reported before it ended, if it was one of this node's."""
        who = (cause.pid, cause.rank)
        return next((each for each in self._call_server.failures if (each["pid"], each["rank"]) == who), None)

    def _failed(self, what: str, cause: WorkerFailure | None = None) -> TrainingFailed:
        with self._lock:
            # As judged by all exits of the round: a worker that lost its peer may be seen to exit before that one.
            cause = cause or self._counted or _cause(self._failures)
        if cause is None:
            return TrainingFailed(f"workers {what}", node=self.name)
        said = self._told_by(cause)
        traceback = said["traceback"] if said else cause.said
        text = f"the workers {what}: {cause}"
        if said and said["message"] not in text:
            text += f": {said['message']}"
        return TrainingFailed(f"{text}\n{traceback}".rstrip(), cause=cause, traceback=traceback)


def _cause(failures: list[WorkerFailure]) -> WorkerFailure | None:
    """The newest failure that followed no other, or the newest."""
    own = [each for each in failures if not looks_like_an_echo(each) and each.sign not in PASSIVE]
    found = own or failures
    return found[-1] if found else None


def reachable(endpoints: Sequence[str]) -> str:
    """The first endpoint that somebody serves now, so that a node that comes late finds the others; else the first."""
    for endpoint in endpoints if len(endpoints) > 1 else ():
        where = parse_endpoint(endpoint)
        try:
            with socket.create_connection((where.host, where.port), timeout=LOOK_S):
                return endpoint
        except OSError:
            continue  # nobody is there
    return endpoints[0]
