"""Launching from a program: `launch` in one call, or a `NodeAgent` to watch and control while it runs.

    from elastic_agent import LaunchConfig, launch
    results = launch(LaunchConfig(nproc_per_node=2), train, "arg")

Any thread may launch, and several threads at once. Signals are handled only if the main thread launches; the previous
handlers are restored afterwards.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from ..agent.errors import UsageError
from ..proto.frozen import dataclass, replace
from .agent_setup import complete, fitted, make_agent, noticing, torch_events
from .config.config import LaunchConfig, plan
from .config.field_kinds import in_kind
from .control_methods import ControlMethods
from .reporting.exceptions import error_of
from .watched import Watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..agent.report import AgentEvent, Report, Status
    from ..rendezvous.store import Store
    from .in_worker.functions import FunctionCall


@dataclass(frozen=True, slots=True)
class Module:
    """An entry point: a module, run as `python -u -m NAME ARGS`."""

    name: str


@dataclass(frozen=True, slots=True)
class Program:
    """An entry point: a program, run as it is, `PATH ARGS`."""

    path: str
    """Looked up on PATH if it has no slash."""
    title: str = ""
    """What the failure summary calls the job; empty: the path."""


Entrypoint = str | os.PathLike[str] | Callable[..., Any] | Module | Program


class NodeAgent(ControlMethods):
    """This node's agent for one job. `run` may be called once; the other methods at any time, from any thread."""

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Entrypoint,
        *args: object,
        on_event: Callable[[AgentEvent], None] | None = None,
        tell: Callable[[str, bool], None] | None = None,
        store: Store | None = None,
        name: str = "",
    ) -> None:
        """`entrypoint`: path of a Python script, run as `python -u SCRIPT ARGS`, a `Module`, a `Program`, or a function
        that can be pickled, called as `entrypoint(*args)` in each worker; `${local_rank}` in an argument is replaced.

        `on_event` is called with each event on the agent's thread, so it must be quick. `tell` is called with each
        sentence for people and whether it is routine; without it they go to the logger "elastic_agent". What either
        raises is logged and does not affect the job. `store`: a session of the caller's own (such as
        `MemoryStore().host()`) in place of the store that `config` names. `name`: what other nodes call this one.
        Raises UsageError, KillSwitch."""
        self.report: Report | None = None
        """How it ended, in full; None while it has not."""
        self._unused = threading.Lock()
        self._call: FunctionCall | None = None
        self._tell = tell = _guarded("tell", tell) if tell else _log
        _check_config(config)
        self._config = config = in_kind(config)
        watched: Watched | None = None
        try:
            argv, title, job = self._command(entrypoint, args)
            made = plan(_with_store(config, store), argv, title, os.environ, job)
            guarded = _guarded("on_event", on_event) if on_event else None
            made = fitted(config, made, tell)
            self._complete = complete(config, made)
            self._torch_events = torch_events(config, made, title)
            self._watched = watched = Watched(config, made, tell)
            self._service = watched.service
            on_announce = watched.announcing(None)
            on_event = watched.observing(guarded)
            self._agent = make_agent(
                watched.plan, store=store, on_event=on_event, on_announce=on_announce, tell=tell, name=name
            )
            watched.service.agent = self._agent
            if self._torch_events is not None:
                self._torch_events.follow(self._agent.name, watched.service)
        except BaseException:
            self._remove_call()
            if watched is not None:
                watched.close()
            raise
        for warning in made.warnings:
            tell(warning, False)

    def _command(self, entrypoint: object, args: tuple[Any, ...]) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
        if callable(entrypoint):
            from .in_worker.functions import FunctionCall

            self._call = FunctionCall(entrypoint, args)
            return self._call.argv, self._call.title, self._call.job
        from .config.worker_command import check_module, job_command, worker_command

        module, program = isinstance(entrypoint, Module), isinstance(entrypoint, Program)
        if isinstance(entrypoint, Module):
            name = title = entrypoint.name
        elif isinstance(entrypoint, Program):
            name, title = entrypoint.path, entrypoint.title or entrypoint.path
        elif isinstance(entrypoint, (str, os.PathLike)):
            name = title = os.fspath(entrypoint)
        else:
            raise UsageError(f"entrypoint is {entrypoint!r}; give a script's path, a Module, a Program or a function")
        words = [str(arg) for arg in args]
        argv = worker_command(name, words, os.environ, module=module, no_python=program, run_path=False)
        check_module(argv)
        return argv, title, job_command(argv, title)

    @property
    def name(self) -> str:
        """What other nodes call this one."""
        return self._agent.name

    def run(self) -> dict[int, Any]:
        """Run the job to its end; returns, by global rank, what this node's workers returned (None for a script), and
        {} on a spare that a successful job did not need.

        Raises an AgentError for every other end (WorkersFailed, RendezvousTimedOut, StoreLost, ...), and UsageError if
        the agent was run or closed before."""
        if not self._unused.acquire(blocking=False):
            raise UsageError("this NodeAgent was run or closed already; make another one")
        try:
            if self._complete:
                self._tell(self._complete, False)
                self._agent.close()
                self._watched.close()
                return {}
            try:
                with noticing(self._config, self._agent, self._tell):
                    self.report = self._watched.run(self._agent)
            finally:
                if self._torch_events is not None:
                    self._torch_events.concluded(self.report, self._agent.status())
            error = error_of(self.report, self.name)
            if error is not None:
                raise error
            return self._results(self.report)
        finally:
            self._remove_call()

    def status(self) -> Status:
        """A snapshot of this node, also before `run` and after it."""
        return self._agent.status()

    def close(self) -> None:
        """Release the files and descriptors of an agent that will not be run. Does nothing after `run` was called."""
        if self._unused.acquire(blocking=False):
            self._remove_call()
            self._agent.close()
            self._watched.close()

    def _remove_call(self) -> None:
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
    entrypoint: Entrypoint,
    *args: object,
    on_event: Callable[[AgentEvent], None] | None = None,
) -> dict[int, Any]:
    """Run this node's part of a job to its end. Arguments as `NodeAgent`; returns and raises as `NodeAgent.run`."""
    return NodeAgent(config, entrypoint, *args, on_event=on_event).run()


def _with_store(config: LaunchConfig, store: Store | None) -> LaunchConfig:
    if store is None:
        return config
    return replace(config, rdzv_backend="c10d", rdzv_endpoint=config.rdzv_endpoint or "localhost", standalone=False)


def _check_config(config: object) -> None:
    if not isinstance(config, LaunchConfig):
        hint = "; elastic_agent.torchrun.elastic_launch takes torch's" if hasattr(config, "rdzv_backend") else ""
        raise UsageError(f"config is a {type(config).__name__}; give a LaunchConfig of elastic_agent{hint}")


def _guarded(name: str, callback: Callable[..., None]) -> Callable[..., None]:
    def call(first: object, *rest: object) -> None:
        try:
            callback(first, *rest)
        except Exception:  # a callback that only watches must not end the job; the log has its traceback
            import logging

            logging.getLogger("elastic_agent").exception("%s failed for %r", name, first)

    return call


def _log(text: str, routine: bool) -> None:
    import logging

    logging.getLogger("elastic_agent").log(logging.INFO if routine else logging.WARNING, "%s", text)
