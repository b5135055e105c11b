"""Launching from a program: `launch` for one call, `NodeAgent` for those who want to watch and steer.

    from elastic_agent import LaunchConfig, launch
    results = launch(LaunchConfig(nproc_per_node=2), train, "arg")

Any thread may launch, and several at once. Signals are handled only where that is the main thread; what handled them
before does so again afterwards.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..agent.agent import Agent
from ..agent.errors import AgentError, UsageError
from ..agent.report import AgentEvent, Report, Status
from .config.config import LaunchConfig, Plan, plan
from .reporting.exceptions import error_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rendezvous.records import Round
    from ..rendezvous.store import Store
    from .in_worker.functions import FunctionCall
    from .reporting.console import Console
    from .reporting.event_file import Journal


class NodeAgent:
    """This node's agent for one job: made, run once, watched and steered meanwhile from any thread."""

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: str | os.PathLike[str] | Callable[..., Any],
        *args: object,
        on_event: Callable[[AgentEvent], None] | None = None,
        tell: Callable[[str, bool], None] | None = None,
        store: Store | None = None,
        name: str = "",
    ) -> None:
        """`entrypoint`: path of a Python script, run as `python -u SCRIPT ARGS`, or a function that can be pickled,
        called as `entrypoint(*args)` in each worker; `${local_rank}` in an argument is replaced.

        `on_event` gets each event on the agent's thread, and must be quick; what it raises is logged and harms nobody.
        `tell` gets sentences for people and whether each is routine; without it they go to the logger "elastic_agent".
        `store`: a session of the caller's own (such as `MemoryStore().host()`) in place of what `config` names. `name`:
        what other nodes call this one. Raises UsageError."""
        self._unused = threading.Lock()
        self._call: FunctionCall | None = None
        tell = tell or _log
        try:
            argv, title, job = self._command(entrypoint, args)
            made = plan(_with_store(config, store), argv, title, os.environ, job)
            watch = _sheltered(on_event) if on_event else None
            self._agent = make_agent(made, store=store, on_event=watch, tell=tell, name=name)
        except BaseException:
            self._forget_call()
            raise
        for warning in made.warnings:
            tell(warning, False)

    def _command(self, entrypoint: object, args: tuple[Any, ...]) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
        if callable(entrypoint):
            from .in_worker.functions import FunctionCall

            self._call = FunctionCall(entrypoint, args)
            return self._call.argv, self._call.title, self._call.job
        if not isinstance(entrypoint, (str, os.PathLike)):
            raise UsageError(f"entrypoint is {entrypoint!r}; give a script's path or a function")
        from .config.worker_command import job_command, worker_command

        script, words = os.fspath(entrypoint), [str(arg) for arg in args]
        argv = worker_command(script, words, os.environ, module=False, no_python=False, run_path=False)
        return argv, script, job_command(argv, script)

    @property
    def name(self) -> str:
        """What other nodes call this one."""
        return self._agent.name

    def run(self) -> dict[int, Any]:
        """Run to the end, once; returns, by global rank, what this node's workers returned (None for a script).

        Raises the AgentError that says how it ended otherwise: WorkersFailed, RendezvousTimedOut, StoreLost, ...
        An unused spare at the end of a successful job returns {}."""
        if not self._unused.acquire(blocking=False):
            raise UsageError("this NodeAgent was run or closed already; make another one")
        try:
            report = self._agent.run()
            error = error_of(report, self.name)
            if error is not None:
                raise error
            return self._results(report)
        finally:
            self._forget_call()

    def status(self) -> Status:
        """Where this node stands; asking changes nothing. At any time, also before `run` and after it."""
        return self._agent.status()

    def drain(self, reason: str = "drained by its scheduler") -> None:
        """Leave the job politely: goodbye to the others, grace to the workers. `run` raises Preempted, or returns where
        this node's workers have all finished. Does not wait; asked before `run` it counts from there."""
        self._agent.leave(reason)

    def stop(self) -> None:
        """As SIGTERM would: `run` raises StoppedBySignal. A second call shortens the workers' grace. Does not wait."""
        self._agent.stop()

    def close(self) -> None:
        """Give back what an agent holds that is never run. Does nothing once it runs."""
        if self._unused.acquire(blocking=False):
            self._forget_call()
            self._agent.close()

    def _forget_call(self) -> None:
        if self._call is not None:
            self._call.close()

    def _results(self, report: Report) -> dict[int, Any]:
        if not report.ranks:
            return {}
        if self._call is None:
            return dict.fromkeys(report.ranks)
        return {rank: self._call.result(report.round, rank) for rank in report.ranks}


def launch(
    config: LaunchConfig,
    entrypoint: str | os.PathLike[str] | Callable[..., Any],
    *args: object,
    on_event: Callable[[AgentEvent], None] | None = None,
) -> dict[int, Any]:
    """Run this node's part of a job to its end; see `NodeAgent` and `NodeAgent.run`."""
    return NodeAgent(config, entrypoint, *args, on_event=on_event).run()


def run_command(config: LaunchConfig, argv: Sequence[str], title: str, *, as_program: bool) -> None:
    """Run as the command line does: tell people on stderr what happens and how it ended.

    `as_program`: the process is there for this job alone and ends with it.
    Raises the AgentError that ended the job; its `told` is true, as stderr has it already."""
    from ..agent import signals
    from .reporting.console import Console

    if as_program:
        signals.ready()
    console = Console(os.environ)
    journal: Journal | None = None
    try:
        made = plan(config, argv, title, os.environ)
        for warning in made.warnings:
            console.tell(warning, False)
        journal = _journal(console)
        agent = make_agent(
            made,
            tell=console.tell,
            on_event=journal.event if journal else None,
            on_announce=journal.announced if journal else None,
            as_program=as_program,
        )
        console.name = agent.name
        if journal is not None:
            journal.name = agent.name
        report = agent.run(last=as_program)
        error = error_of(report, agent.name)
        if journal is not None:
            journal.concluded(report)
        console.conclude(title, report, error)
    except AgentError as failure:
        console.fail(failure)
        raise
    finally:
        if journal is not None:
            journal.close()
    if error is not None:
        error.reported = True
        raise error


def _journal(console: Console) -> Journal | None:
    """Its module is loaded only for those who ask for it."""
    path = os.environ.get("ELASTIC_AGENT_EVENTS")
    if not path:
        return None
    from .reporting.event_file import Journal

    return Journal(path, console.tell)


def make_agent(
    made: Plan,
    *,
    store: Store | None = None,
    on_event: Callable[[AgentEvent], None] | None = None,
    on_announce: Callable[[Round], None] | None = None,
    tell: Callable[[str, bool], None] | None = None,
    name: str = "",
    as_program: bool = False,
) -> Agent:
    """The agent for a checked configuration."""
    spec = made.rendezvous
    # A job on one machine loads nothing of stores.
    make_link, find_addr = None, None
    if store is not None or spec.backend != "memory":
        from .store_link import address, link_to

        make_link, find_addr = link_to(spec, store, tell, as_program=as_program), lambda: address(spec)
    return Agent(
        made.workers,
        spec,
        make_link=make_link,
        find_addr=find_addr,
        on_event=on_event,
        on_announce=on_announce,
        tell=tell,
        name=name,
    )


def _with_store(config: LaunchConfig, store: Store | None) -> LaunchConfig:
    if store is None:
        return config
    from dataclasses import replace

    return replace(config, rdzv_backend="c10d", rdzv_endpoint=config.rdzv_endpoint or "localhost", standalone=False)


def _sheltered(on_event: Callable[[AgentEvent], None]) -> Callable[[AgentEvent], None]:
    def call(event: AgentEvent) -> None:
        try:
            on_event(event)
        except Exception:  # who watches a job must not be able to end it; the log has the whole story
            import logging

            logging.getLogger("elastic_agent").exception("on_event failed on %r", event)

    return call


def _log(text: str, routine: bool) -> None:
    import logging

    logging.getLogger("elastic_agent").log(logging.INFO if routine else logging.WARNING, "%s", text)
