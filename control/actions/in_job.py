"""What a watch does to the job around it: save stacks of all its workers, end the round, leave."""

from __future__ import annotations

import threading

from ...rendezvous.agreements import Act
from ...rendezvous.text import shorten
from ..answers import ask
from ..inside import Job
from ..readings.processes import matching
from ..table.watch import Table, Watch
from .flight import behind
from .stacks import Dump, save, stacks_of

INSIDE = ("dump", "restart", "drain", "save", "stop")
"""What a watch in an agent does by the agent; the last two by the switches that the table names, if it does."""
ASKED = {"save": Act.SAVE, "stop": Act.KILL, "restart": Act.RESTART}
DONE = {
    "save": "all ranks were asked for a checkpoint at their next step",
    "stop": "all ranks were asked to save and stop at their next step",
    "restart": "all ranks were asked to save at their next step, and be started again; no node is charged",
}
OTHERS_FIRST_S = 10.0
"""How long a node whose workers all wait for others leaves it to these to end the round: theirs is the cause."""
MESSAGE_MAX = 600
"""Characters of a failure's message."""
SAID_MAX = 4000
"""Characters of stacks that a failure holds; its record is bounded."""


def inside(job: Job, action: str, table: Table, watch: Watch, sentence: str) -> str:
    """Do it. Returns one line: what was done, or why not."""
    if action == "drain":
        job.leave(sentence)
        return "this node leaves the job"
    if action != "dump" and not (action == "restart" and watch.what == "hang"):
        job.ask(ASKED[action], sentence)
        return DONE[action]
    number, workers = job.round, job.workers()
    chosen = {rank: pid for rank, pid in workers.items() if not watch.process or pid in matching(watch.process)}
    if not chosen:
        return "no stacks: no worker of this node runs"
    found, late, said = _dump(job, chosen, table.dumps, watch.signal)
    line = f"{found.line}; {said}" if said else found.line
    if action == "dump":
        return line
    rank = _odd(found, late, chosen)
    message = shorten(" ".join(f"{sentence}; {said + '; ' if said else ''}{found.summary}".split()), MESSAGE_MAX)
    text = "\n\n".join(f"{group[0].who}\n{group[0].text}" for group in found.groups)[:SAID_MAX]
    if found.waits and not late and job.nodes > 1:
        timer = threading.Timer(OTHERS_FIRST_S, job.end_round, (number, rank, message, text))
        timer.daemon = True
        timer.start()
        return f"{line}; all workers of this node wait for others, whose node may end the round in {OTHERS_FIRST_S:g} s"
    job.end_round(number, rank, message, text)
    return f"{line}; the round ends, and is charged as a failure of rank {rank}"


def _dump(job: Job, workers: dict[int, int], folder: str, signal: str) -> tuple[Dump, tuple[int, ...], str]:
    """(stacks, ranks that are behind by torch's flight recorder, a sentence about it)."""
    sockets = {rank: job.answers(rank) for rank in workers}
    found = stacks_of(list(workers.values()), signal, {workers[rank]: path for rank, path in sockets.items()})
    flights = {rank: answer.flight for rank, path in sockets.items() if (answer := ask(path)) is not None}
    late, said = behind(flights)
    return save(found, folder, said), late, said


def _odd(found: Dump, late: tuple[int, ...], workers: dict[int, int]) -> int:
    """The rank that the failure is about: one that is behind in a collective, else the first of the odd group."""
    of_pid = {pid: rank for rank, pid in workers.items()}
    odd = [of_pid[each.pid] for each in found.groups[0]]
    return next((rank for rank in late if rank in workers), min(odd))
