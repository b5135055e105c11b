"""An agent with watches beside it, or without: `--watch` and `--notify`. Without them nothing of control is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable

from ..proto.frozen import replace
from .config.config import LaunchConfig, Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..agent.agent import Agent
    from ..agent.report import Report
    from ..control.in_agent.watching import Watching
    from ..rendezvous.records import Round

OnAnnounce = Callable[["Round"], None]


class Watched:
    """Runs an agent, watched as its configuration says."""

    def __init__(self, config: LaunchConfig, made: Plan, tell: Callable[[str, bool], None]) -> None:
        """Raises UsageError for a mistake in the table or in a URL."""
        self.plan = made
        """With what the workers need to be watched."""
        self._watching: Watching | None = None
        notify = (config.notify,) if isinstance(config.notify, str) and config.notify else tuple(config.notify)
        if not config.watch and not notify:
            return
        from ..control.in_agent.watching import Watching

        self._watching = Watching(os.fspath(config.watch), notify, made.workers.run_id, tell)
        environ = {**made.workers.base_env, **self._watching.variables}
        workers = replace(made.workers, base_env=environ, own_directory=self._watching.directory)
        self.plan = replace(made, workers=workers)

    def announcing(self, also: OnAnnounce | None) -> OnAnnounce | None:
        """What is to be called with each announcement of this node as the coordinator."""
        if self._watching is None:
            return also
        watching = self._watching

        def announced(announcement: Round) -> None:
            watching.announced(announcement)
            if also is not None:
                also(announcement)

        return announced

    def run(self, agent: Agent, *, last: bool = False) -> Report:
        """As `Agent.run`."""
        if self._watching is None:
            return agent.run(last=last)
        report: Report | None = None
        self._watching.begin(agent)
        try:
            report = agent.run(last=last)
            return report
        finally:
            self._watching.ended(report)

    def close(self) -> None:
        """Let go of what an agent that was not run would have needed. Does nothing after `run`."""
        if self._watching is not None:
            self._watching.ended(None)
