"""What this node answers when a node of its round asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..actions import everywhere
from ..actions.in_job import end_asked
from ..decisions import questions
from ..decisions.questions import Question
from ..job_view import JobView
from ..readings.clock import shown_clock
from ..readings.progress import shown_paces, shown_standing
from ..table.watch import Table


def reply(job: JobView, table: Table, question: Question) -> Mapping[str, Any] | None:
    """The answer; None where there is none to give, as to a question of another version. `table`: of this node."""
    if question.kind == questions.STACKS:
        hangs = [watch for watch in table.watches if watch.what == "hang"]
        same = [watch for watch in hangs if watch.number == question.body.get("watch")]
        return everywhere.reply(job, (same or hangs)[0]) if hangs else None
    if question.kind == questions.STANDING:
        return shown_standing(job)
    if question.kind == questions.PACES:
        return shown_paces(job)
    if question.kind == questions.CLOCK:
        return shown_clock()
    if question.kind == questions.END:
        end_asked(job, question.round, question.body)
    return None
