"""An agent with what is beside it: its control service, and watches where `--watch` or `--notify` ask for some.

Without these two flags nothing of watches is loaded, and until somebody asks, next to nothing of the control service.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from threading import Lock

from ..control.control_socket import Service
from ..proto.frozen import replace
from .config.config import EXACT_RESUME, LaunchConfig, Plan
from .preemption.end_of_time import DEADLINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket

    from ..agent.agent import Agent
    from ..agent.loop import Loop
    from ..agent.report import AgentEvent, Report
    from ..agent.spec import WorkerSpec
    from ..control.control_socket import Answering
    from ..control.in_agent.watching import Watching
    from ..proto.progress import Progress
    from ..rendezvous.records import Round

HEALTH_CHECK = "TORCHELASTIC_HEALTH_CHECK_PORT"
ALL_INTERFACES = "0.0.0.0"  # noqa: S104 - the probe of a pod comes from outside of it
PAGE_ADDRESS = "127.0.0.1:0"
OnAnnounce = Callable[["Round"], None]
OnEvent = Callable[["AgentEvent"], None]


class Watched:
    """Runs an agent that can be asked, watched as its configuration says."""

    def __init__(
        self,
        config: LaunchConfig,
        made: Plan,
        tell: Callable[[str, bool], None],
        show: Callable[[str, bool], None] | None = None,
    ) -> None:
        """`show`: as `tell`, which it is if not given, for the addresses of what is served. Raises UsageError for a
        mistake in the table or in a URL."""
        self._watching: Watching | None = None
        self._making = Lock()
        self._agent: Agent | None = None
        self._tell, self._show = tell, show or tell
        self._run_id = made.workers.run_id
        notify = (config.notify,) if isinstance(config.notify, str) and config.notify else tuple(config.notify)
        workers = made.workers
        if config.watch or notify:
            from ..control.in_agent.watching import Watching

            self._watching = Watching(os.fspath(config.watch), notify, self._run_id, tell, self._alarmed)
            environ = {**workers.base_env, **self._watching.variables}
            workers = replace(workers, base_env=environ, own_directories=(self._watching.directory,))
        self.service = Service(self._run_id, tell, self._answer, self._set_watch)
        if self.service.directory:
            workers = replace(workers, own_directories=(*workers.own_directories, self.service.directory))
        self.service.progress = self._progress
        if deadline := workers.base_env.get(DEADLINE):
            self.service.deadline_s = float(deadline)
        self.service.checkpoints = workers.base_env.get(EXACT_RESUME, "")
        workers = self._add_others(config, workers)
        self.plan = replace(made, workers=workers)
        """With what the workers need to be watched."""

    def _add_others(self, config: LaunchConfig, workers: WorkerSpec) -> WorkerSpec:
        """What serves metrics, and what tells systemd, whose variables are not for workers."""
        if served := config.metrics_address or self._health_check_address():
            from .. import __version__
            from ..control.service.scrape import Scraping
            from .config.values import endpoint

            address = endpoint("metrics_address", served, None)
            self.service.companions.append(Scraping(self.service, address, __version__, self._show))
        if config.page or config.page_address:
            from ..control.page.paging import Paging
            from .config.values import endpoint

            shown = endpoint("page_address", config.page_address or PAGE_ADDRESS, None)
            self.service.companions.append(Paging(self.service, shown, self._show))
        if config.control_address:
            from ..control.remote.opening import announced, opened

            files = (config.control_cert, config.control_key, config.control_tokens)
            remote = opened(self.service, config.control_address, *files, self._show)
            self.service.companions.append(remote)
            workers = replace(workers, control=announced(remote))
        if os.environ.get("NOTIFY_SOCKET"):
            from ..control.service.systemd import VARIABLES, Notifying

            self.service.companions.append(Notifying(os.environ, self._tell))
            env = {name: value for name, value in workers.base_env.items() if name not in VARIABLES}
            workers = replace(workers, base_env=env)
        return workers

    def _health_check_address(self) -> str:
        """Where torch's variable asks for health checks; empty: nowhere."""
        port = os.environ.get(HEALTH_CHECK, "")
        if not port or (port.isdecimal() and port.isascii() and int(port) < 65536):
            return f"{ALL_INTERFACES}:{port}" if port else ""
        self._tell(f"no health checks are served: {HEALTH_CHECK} is {port!r}; give a port", False)
        return ""

    def announcing(self, also: OnAnnounce | None) -> OnAnnounce:
        """What is to be called with each announcement of this node as the coordinator."""

        def announced(announcement: Round) -> None:
            self.service.announced(announcement)
            if self._watching is not None:
                self._watching.announced(announcement)
            if also is not None:
                also(announcement)

        return announced

    def observing(self, also: OnEvent | None) -> OnEvent:
        """What is to be called with each event of the agent."""
        if also is None:
            return self.service.happened
        happened, others = self.service.happened, also

        def observed(event: AgentEvent) -> None:
            happened(event)
            others(event)

        return observed

    def run(self, agent: Agent, *, last: bool = False) -> Report:
        """As `Agent.run`."""
        report: Report | None = None
        self._agent = agent
        if self._watching is not None:
            self._watching.begin(agent)
        try:
            report = agent.run(last=last, beside=self.service)
            return report
        finally:
            if self._watching is not None:
                self._watching.ended(report)

    def close(self) -> None:
        """Let go of what an agent that was not run would have needed. Does nothing after `run`."""
        if self._watching is not None:
            self._watching.ended(None)
        self.service.close()

    def _answer(self, service: Service, listener: socket, loop: Loop) -> Answering:
        """Somebody asks for the first time."""
        from ..control.service.connections import Connections

        return Connections(service, listener, loop, self._tell)

    def _progress(self) -> Mapping[int, Progress]:
        return self._watching.progress() if self._watching is not None else {}

    def _alarmed(self, watch: str, change: str, because: str) -> None:
        self.service.alarmed(watch, change, because)

    def _set_watch(self, names: str, table: str) -> str:
        """As `SetWatch` asks. Takes time: on a thread of its own."""
        with self._making:
            if self._watching is None:
                from ..control.in_agent.watching import Watching

                self._watching = made = Watching("", (), self._run_id, self._tell, self._alarmed)
                if self._agent is not None:
                    made.begin(self._agent)
                if self.service.closed:
                    made.ended(None)  # `run` may not have seen it
            watching = self._watching
        return watching.set(names, table)
