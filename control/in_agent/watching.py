"""Runs a table of watches beside an agent, and notifies people of restarts and of the end of its job."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping

from ...agent import exit_status
from ...agent.agent import Agent
from ...agent.errors import UsageError
from ...agent.report import Report
from ...proto import progress
from ...proto.frozen import replace
from ...proto.progress import Progress
from ...rendezvous.failures import EndKind
from ...rendezvous.records import Outcome, Round, RoundPhase
from ...rendezvous.text import count
from ..actions.perform import Actor
from ..notify.notifier import Notifier
from ..table.parse import check_actions, parse_table
from ..table.watch import Table
from ..watcher.runner import Runner
from .usual_watches import USUAL, checked_table, table_of
from .view import AgentsJob

CLOSE_S = 10.0
"""How long messages may take to go out when the job has ended."""
JOIN_S = 15.0
"""How long the threads may take to end, actions that were begun included; they are daemons."""
NEXT_STEPS: Mapping[Outcome, str] = {
    Outcome.SUCCEEDED: "nothing",
    Outcome.FAILED: "look at the cause; queue the job again if it may pass",
    Outcome.JOIN_TIMED_OUT: "look at the nodes that are missing, and queue the job again",
    Outcome.UNFINISHED: "find out why a node is late, or raise --exit-barrier-timeout",
    Outcome.ABANDONED: "look at why the nodes left, and queue the job again",
    Outcome.MISCONFIGURED: "correct the command of the nodes",
    Outcome.KILLED: "nothing; a job array that ends with 83 does not go on",
    Outcome.PREEMPTED: "queue the job again: it goes on",
}
"""What somebody who is told of the end of the job does, as docs/exit-codes.md says."""
NO_USE = "look at the cause; queueing the job again as it is will not help"
"""The same of a failure that forbids a restart."""


def next_step(closed: Round) -> str:
    """Of an announcement that has an outcome."""
    outcome = closed.outcome or Outcome.FAILED
    cause = closed.ended.failure if closed.ended is not None and outcome is Outcome.FAILED else None
    return NO_USE if cause is not None and cause.final else NEXT_STEPS[outcome]


class Watching:
    """What `--watch` and `--notify` ask for. `announced` is called on the agent's thread, and returns at once."""

    def __init__(
        self,
        path: str,
        notify: Iterable[str],
        run_id: str,
        tell: Callable[[str, bool], None],
        alarmed: Callable[[str, str, str], None] | None = None,
    ) -> None:
        """`tell` gets alarms, and whether a line is routine; `alarmed` the name of the watch, the change and what was
        read, before anything is done about it. Both from any thread. Raises UsageError for a mistake in the file or in
        a URL, and where the host refuses a directory."""
        self._tell, self._alarmed = tell, alarmed
        table, channels = checked_table(path, notify)
        self.table = replace(table, job=table.job or run_id)
        self._notifier = Notifier(channels, self.table.pace, self.table.job, _node(), self._log)
        try:
            self._job = AgentsJob()
        except OSError as error:
            raise UsageError(f"--watch: no directory for the workers' progress: {error}; set TMPDIR") from None
        self._runner = self._runner_of(self.table)
        self._stop, self._stop_runner = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()
        self._told = 0

    @property
    def variables(self) -> dict[str, str]:
        """For the workers' environment."""
        return {progress.DIRECTORY: self._job.directory}

    @property
    def directory(self) -> str:
        """In which workers show their progress; `close` removes it."""
        return self._job.directory

    def begin(self, agent: Agent) -> None:
        """Watch, from now on, the job of this agent."""
        self._begin_asking(agent)
        self._begin_looking()

    def _begin_looking(self) -> None:
        if self.table.watches:
            self._thread = threading.Thread(
                target=self._runner.run, args=(self._stop_runner,), name="elastic-agent-watches", daemon=True
            )
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread = None
                self._tell(f"cannot watch the job: this host refuses a thread ({error}); raise ulimit -u", False)

    def _runner_of(self, table: Table) -> Runner:
        actor = Actor(table, self._notifier, _node(), self._log, self._job, self._alarmed)
        return Runner(table, actor, self._detail, self._job)

    def set(self, names: str, text: str) -> str:
        """Watch this from now on, in place of what was watched: usual watches by their names, or the text of a table;
        nothing where both are empty. Channels stay as they are. Returns what was done, in one sentence. Blocks until
        what watched before has ended. Raises UsageError for a mistake, and then nothing has changed."""
        if names and text:
            raise UsageError("give names of usual watches or the text of a table, not both")
        if names and (unknown := [name for name in names.split(",") if name.strip() not in USUAL]):
            raise UsageError(f"{unknown[0].strip()!r:.80} is no usual watch; there are {', '.join(USUAL)}")
        made = table_of(names) if names else parse_table(text, "the table", inside=True) if text else None
        if made is not None and made.notify:
            raise UsageError("notify cannot be changed while the job runs; leave it out of the table")
        watches = made.watches if made is not None else ()
        table = replace(self.table, watches=watches, dumps=made.dumps if made is not None else self.table.dumps)
        check_actions(table, inside=True)
        with self._changing:
            if self._stop.is_set():
                raise UsageError("the job has ended; nothing is watched")
            self._end_looking()
            self._runner.drop()
            self.table = table
            self._job.set_table(table)
            self._runner = self._runner_of(table)
            self._stop_runner = threading.Event()
            self._begin_looking()
        named = ", ".join(watch.title for watch in watches)
        return f"watched from now on: {named}" if named else "nothing is watched from now on"

    def progress(self) -> Mapping[int, Progress]:
        """How far each worker of this node is, by rank, of those that show it."""
        return self._job.progress()

    def _end_looking(self) -> None:
        self._stop_runner.set()
        self._runner.wake()
        if self._thread is not None:
            self._thread.join(JOIN_S)
            self._thread = None

    def _begin_asking(self, agent: Agent) -> None:
        try:
            self._job.begin(agent, self.table, self._log)
        except RuntimeError as error:
            self._tell(f"cannot ask other nodes: this host refuses a thread ({error}); raise ulimit -u", False)

    def announced(self, announcement: Round) -> None:
        """An announcement that this node makes as the coordinator: only it notifies of how rounds end."""
        ended = announcement.ended
        settled = announcement.phase is not RoundPhase.OVER
        unplanned = ended is not None and ended.kind in (EndKind.FAILURE, EndKind.DEPARTURE)
        if ended is not None and unplanned and settled and ended.round > self._told and announcement.outcome is None:
            self._told = ended.round
            self._notifier.tell(
                f"round {ended.kind.value}",
                f"round {ended.round} ended: {ended.because}\nnext: nothing; the job goes on",
            )
        if announcement.outcome is not None:
            step = next_step(announcement)
            self._notifier.tell("job ended", f"the job ended: {announcement.because}\nnext: {step}")

    def ended(self, report: Report | None) -> None:
        """The agent has ended, or never ran. Sends what waits, for at most CLOSE_S. Does nothing the second time."""
        with self._changing:
            if self._stop.is_set():
                return
            self._stop.set()
            self._stop_runner.set()
            self._runner.wake()
        if report is not None and _nobody_told(report):
            self._notifier.tell(
                f"node {_node()} ended",
                f"node {_node()} ended with status {report.verdict.exit_code}: {report.verdict.because}\n"
                "next: docs/exit-codes.md; queue the job again",
            )
        self._end_looking()
        self._job.close()
        for name, events in self._notifier.close(CLOSE_S).items():
            number = sum(number for _, _, number in events)
            self._tell(f"{name}: {count(number, 'event')} of watches were not delivered", False)

    def _log(self, line: str) -> None:
        self._tell(line, False)

    def _detail(self, line: str) -> None:
        self._tell(line, True)


def _nobody_told(report: Report) -> bool:
    """Whether this end was announced by no coordinator, and asked for by nobody: the store is lost, say."""
    verdict = report.verdict
    asked_for = (
        verdict.exit_code in (exit_status.OK, exit_status.PREEMPTED) or verdict.exit_code >= exit_status.SIGNALLED
    )
    return verdict.outcome is None and not asked_for


def _node() -> str:
    return os.uname().nodename
