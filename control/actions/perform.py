"""Carries out the actions of a watch, in its order, and notifies people of what was done."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable

from ...proto.frozen import dataclass
from ...rendezvous.text import duration
from ..commands import Asker, NoReading
from ..decisions.watches import Change
from ..job_view import JobView
from ..notify.notifier import Notifier
from ..readings.processes import matching
from ..stream import DROPPED
from ..table.kinds import KINDS
from ..table.watch import Table, Watch
from .in_job import INSIDE, inside
from .stacks import dump
from .switches import touch

EXEC_S = 60.0
"""How long a command of the user's may take."""


@dataclass(frozen=True)
class Happening:
    """A change of a watch, with what was read."""

    watch: Watch
    change: Change
    text: str


class Actor:
    """Carries out actions, one after the other. One that fails is logged and notified, and the others are still
    done."""

    def __init__(
        self,
        table: Table,
        notifier: Notifier,
        node: str,
        log: Callable[[str], None],
        job: JobView | None = None,
        alarmed: Callable[[str, str, str], None] | None = None,
    ) -> None:
        """`job`: the one around it, where it runs in an agent; `alarmed` gets each change first: the watch, the change,
        what was read."""
        self._alarmed = alarmed
        self._table, self._notifier, self._node, self._log = table, notifier, node, log
        self._job = job
        self._asker = Asker()

    def close(self) -> None:
        """Kill the command that still runs, whose time is over with that of the watches; start no more."""
        self._asker.end()

    def act(self, happening: Happening) -> None:
        """Do what the watch says. All but the first firing only notifies."""
        watch = happening.watch
        sentence = sentence_of(happening)
        if self._alarmed is not None:
            self._alarmed(watch.title, happening.change.value, sentence)
        self._log(sentence)
        lines = [sentence]
        if happening.change is Change.FIRED:
            for action in watch.do:
                # A restart takes the stacks itself.
                if action != "notify" and not (action == "dump" and "restart" in watch.do):
                    lines.append(self._done(action, happening))
                    self._log(f"{watch.title}: {lines[-1]}")
        if happening.change in (Change.FIRED, Change.AGAIN):
            lines.append(f"next: {KINDS[watch.what].next_step}")
        if "notify" in watch.do:
            self._notifier.tell(f"{watch.title} {happening.change.value}", "\n".join(lines))

    def dropped(self, watch: Watch) -> None:
        """What this watch last said holds no more: nobody looks here any longer."""
        if self._alarmed is not None:
            self._alarmed(watch.title, DROPPED, f"{watch.title}: no longer watched on this node")

    def _done(self, action: str, happening: Happening) -> str:
        """Do it. Returns one line: what was done, or why not."""
        watch = happening.watch
        try:
            switch = {"save": self._table.save_switch, "stop": self._table.kill_switch}
            if self._job is not None and action in INSIDE and not switch.get(action):
                return inside(self._job, action, self._table, watch, sentence_of(happening))
            if action == "dump":
                return dump(matching(watch.process), self._table.dumps, watch.signal)
            if action == "save":
                # Without a label: a labelled checkpoint is kept beyond retention, which a full disk does not need.
                made = touch(self._table.save_switch)
                return _switched("save", self._table.save_switch, made=made)
            if action == "stop":
                made = touch(self._table.kill_switch, f"{sentence_of(happening)}\n")
                return _switched("kill", self._table.kill_switch, made=made)
            return self._execute(action.partition(":")[2], happening)
        except OSError as error:
            return f"{action} failed: {error.strerror}: {error.filename}"

    def _execute(self, line: str, happening: Happening) -> str:
        argv = shlex.split(line)
        watch = happening.watch
        told = {
            "watch": watch.title,
            "what": watch.what,
            "text": happening.text,
            "job": self._table.job,
            "node": self._node,
        }
        try:
            self._asker.run(argv, EXEC_S, json.dumps(told))
        except NoReading as error:
            return f"{error}"
        return f"ran {argv[0]}: exit 0"


def _switched(switch: str, path: str, *, made: bool) -> str:
    return f"made the {switch} switch {path}" if made else f"the {switch} switch {path} exists already"


def sentence_of(happening: Happening) -> str:
    """One line: the watch, the thing and the number."""
    watch, text = happening.watch, happening.text
    if happening.change is Change.FIRED:
        lasting = f" for {duration(watch.rule.for_s)}" if watch.rule.for_s else ""
        return f"{watch.title}: {text}{lasting}"
    return {
        Change.AGAIN: f"{watch.title}: still {text}",
        Change.CLEARED: f"{watch.title}: no longer over its limit: {text}",
        Change.BLIND: f"{watch.title}: cannot be read: {text}",
        Change.READABLE: f"{watch.title}: can be read again: {text}",
    }[happening.change]
