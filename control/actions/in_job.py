"""What a watch does to the job around it: save stacks of all its workers, of all nodes, end the round, leave."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ...proto.frozen import dataclass
from ...rendezvous.agreements import Act
from ...rendezvous.text import duration, shorten
from ..decisions.questions import END, STACKS
from ..job_view import Answers, JobView
from ..table.watch import Table, Watch
from .everywhere import chosen, compare, reply
from .stacks import save

INSIDE = ("dump", "restart", "drain", "save", "stop")
"""What a watch in an agent does by the agent; the last two by the switches that the table names, if it does."""
ASKED = {"save": Act.SAVE, "stop": Act.KILL, "restart": Act.RESTART}
DONE = {
    "save": "all ranks were asked for a checkpoint at their next step",
    "stop": "all ranks were asked to save and stop at their next step",
    "restart": "all ranks were asked to save at their next step, and be started again; no node is charged",
}
OTHERS_FIRST_S = 10.0
"""How long a node leaves it to others to end the round, whose rank is the cause, or may be."""
STACKS_S = 30.0
"""How long the nodes of the round have to answer with their stacks."""
AGAIN_S = 60.0
"""How long the stacks that another node has compared serve for this one: limits of nodes differ, so they find one hang
one after the other."""
LINE_MAX = 2000
"""Characters of a sentence about the stacks."""
MESSAGE_MAX = 600
"""Characters of a failure's message."""
SAID_MAX = 4000
"""Characters of stacks that a failure holds; its record is bounded."""


def inside(job: JobView, action: str, table: Table, watch: Watch, sentence: str) -> str:
    """Do it. Returns one line: what was done, or why not."""
    if action == "drain":
        job.leave(sentence)
        return "this node leaves the job"
    if action != "dump" and not (action == "restart" and watch.what == "hang"):
        job.ask(ASKED[action], sentence)
        return DONE[action]
    number = job.round
    if not chosen(job, watch.process):
        return "no stacks: no worker of this node runs"
    if watch.what == "hang":
        found, node = job.conclude(
            STACKS, {"watch": watch.number}, STACKS_S, lambda answers: _conclusion(answers, table.dumps), AGAIN_S
        )
    else:
        found, node = _conclusion(Answers({"": reply(job, watch)}), table.dumps), ""
    conclusion = Conclusion.of(found)
    line = f"{conclusion.line}; compared by {node}" if node else conclusion.line
    return line if action == "dump" else f"{line}; {_end(job, number, conclusion, sentence)}"


@dataclass(frozen=True)
class Conclusion:
    """What the stacks of all ranks say, for people and for the failure of a rank."""

    line: str
    """Where the stacks are, who stands where, who has not come, who has not answered."""
    brief: str
    """The same, without the file."""
    text: str
    """Stacks, the odd rank's first."""
    rank: int
    """The rank that the failure is about."""
    unsure: bool
    """All ranks that are known wait for others, and of some nothing is known."""

    @staticmethod
    def of(found: Mapping[str, Any]) -> Conclusion:
        """From what a node has published; nothing in it is relied on."""
        line, brief, text = (str(found.get(key, "")) for key in ("line", "brief", "text"))
        rank = found.get("rank")
        return Conclusion(
            " ".join(line.split())[:LINE_MAX],
            " ".join(brief.split())[:LINE_MAX],
            text[:SAID_MAX],
            rank if type(rank) is int else -1,
            found.get("unsure") is True,
        )


def _conclusion(answers: Answers, folder: str) -> dict[str, Any]:
    world = compare(answers.found, named=len(answers.found) + len(answers.silent) > 1)
    silent = _silence(answers)
    if not world.found.groups:
        return {"line": f"no stacks: {silent or 'no worker runs'}", "rank": -1, "unsure": True}
    remarks = [each for each in (world.said, silent) if each]
    found = save(world.found, folder, *world.native, *remarks)
    text = "\n\n".join(f"{group[0].who}\n{group[0].text}" for group in found.groups)[:SAID_MAX]
    return {
        "line": "; ".join([found.line, *remarks])[:LINE_MAX],
        "brief": "; ".join([*remarks, found.summary])[:LINE_MAX],
        "text": text,
        "rank": world.odd,
        "unsure": found.waits and not world.late and bool(answers.silent),
    }


def _silence(answers: Answers) -> str:
    """Who has not answered, or why nobody was asked; empty where all have."""
    if answers.trouble:
        return answers.trouble
    if not answers.silent:
        return ""
    more = f" and {len(answers.silent) - 4} more" if len(answers.silent) > 4 else ""
    return f"no answer from {', '.join(answers.silent[:4])}{more} within {duration(STACKS_S)}"


def _end(job: JobView, number: int, conclusion: Conclusion, sentence: str) -> str:
    """End the round by a failure of the odd rank, by its agent; where that one does not, by this one. Returns what was
    done."""
    message = shorten(" ".join(f"{sentence}; {conclusion.brief}".split()), MESSAGE_MAX)
    own = sorted(job.workers())
    if conclusion.rank in own and not conclusion.unsure:
        job.end_round(number, conclusion.rank, message, conclusion.text)
        return f"the round ends, and is charged as a failure of rank {conclusion.rank}"
    if not own:
        return f"round {number} ended before the failure was reported"
    whose = "every worker that answered waits for a rank that did not; the node of that rank may end the round"
    if not conclusion.unsure and conclusion.rank >= 0:
        job.publish(END, {"rank": conclusion.rank, "message": message, "text": conclusion.text})
        whose = f"the node of rank {conclusion.rank} ends the round"
    timer = threading.Timer(OTHERS_FIRST_S, job.end_round, (number, own[0], message, conclusion.text))
    timer.name, timer.daemon = "elastic-agent-end-round", True
    timer.start()
    return f"{whose}; otherwise this node does so in {OTHERS_FIRST_S:g} s"


def end_asked(job: JobView, number: int, body: Mapping[str, Any]) -> None:
    """Another node says that a rank makes the round stand still: end the round if it is one of this node's."""
    rank, message, text = body.get("rank"), body.get("message"), body.get("text")
    if type(rank) is int and rank in job.workers() and isinstance(message, str) and isinstance(text, str):
        job.end_round(number, rank, message[:MESSAGE_MAX], text[:SAID_MAX])
