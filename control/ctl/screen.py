"""The status of a job as one screen of text: what, why, how many of how many, what is odd, what next. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...rendezvous.agreements import DOES
from ...rendezvous.text import count, duration
from ..decisions.capacity import SILENT_PART_OF_LEASE

Message = Mapping[str, Any]
NODES_MAX = 16
"""Nodes above which only the odd ones are listed."""
CELLS_MAX = 32
"""Workers of a node above which those of a kind are counted."""
EVENTS_MAX = 5
STILL_S = 30.0
"""Without a sign of life of the worker library for so long, a worker is shown as standing still."""
ODD, PLAIN = True, False
_DOES = {act.value: does for act, does in DOES.items()}


@dataclass(frozen=True)
class Line:
    """One line; an odd one is in colour."""

    text: str
    odd: bool = PLAIN


def screen(
    job: Message,
    workers: Sequence[Message],
    events: Sequence[Message],
    now_s: float,
    *,
    width: int,
    wide: bool = False,
    saved: Message | None = None,
) -> list[Line]:
    """`job`: the answer to Job; `workers`: those of this host's agents to Workers; `events`: the last events of the
    agent that answered; `now_s`: seconds since 1970; `saved`: the newest checkpoint, as `kept.newest` has it."""
    lines = [
        *_head(job, workers),
        *_limits(job, saved, now_s),
        *_said(job),
        Line(""),
        *_nodes(job, workers, wide=wide),
        Line(""),
    ]
    lines += [Line(f"{_ago(now_s - each['timeS']):>8}  {_event(each)}") for each in _latest(events)]
    lines.append(Line(f"next  {_next(job)}"))
    return [Line(line.text if wide else _cut(line.text, max(40, width)), line.odd) for line in lines]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _head(job: Message, workers: Sequence[Message]) -> list[Line]:
    odd = [each for each in job["nodes"] if _is_odd(each, job)]
    what = job["outcome"] or job["phase"] or "connecting"
    odd_text = f", {odd[0]['name']} is {_state(odd[0], job).lower()}" if len(odd) == 1 else ""
    odd_text = odd_text or (f", {count(len(odd), 'node')} need attention" if odd else "")
    placed = sum("groupRank" in each for each in job["nodes"]) + _others(job).get("placed", 0)
    wanted = f"{job['minNodes']}:{job['maxNodes']}" if job["minNodes"] != job["maxNodes"] else f"{job['minNodes']}"
    first = f"{job['runId']}  {what}{odd_text}"
    sizes = f"{placed} of {count_of(wanted)}  {count(job['worldSize'], 'worker')}  {duration(job['ageS'])}"
    lines = [Line(f"{first:<46}  {sizes}", bool(odd))]
    of_round = f"round {job['round']}: " if job["round"] else ""
    lines.append(Line(f"why   {of_round}{job['because']}"))
    if job["storeTrouble"]:
        lines.append(Line(f"store does not answer: {job['storeTrouble']}", ODD))
    if (agreed := job.get("agreement")) and not agreed.get("over"):
        where = f"at step boundary {agreed['at']}" if agreed.get("at") else "at their next step boundary"
        lines.append(Line(f"plan  all ranks {_DOES.get(agreed['act'], agreed['act'])} {where}: {agreed['because']}"))
    if ended := job.get("ended"):
        charged = f"; charged to {ended['charged']}" if ended.get("charged") else ""
        lines.append(Line(f"last  round {ended['round']} ended by {ended['kind']}: {ended['because']}{charged}"))
    if steps := [each["steps"] for one in workers for each in one["workers"] if each.get("steps")]:
        lines.append(Line(f"step  {max(steps):,}"))
    lines += [Line(f"time  {line}") for line in job.get("goodput", ())]
    return lines


def _limits(job: Message, saved: Message | None, now_s: float) -> list[Line]:
    """The newest checkpoint, and the end of the job's time, as far as they are known."""
    lines = []
    if saved is not None:
        label = f", kept as {saved['label']!r}" if saved["label"] else ""
        lines.append(Line(f"saved step {saved['step']:,}, {_ago(now_s - saved['time_s'])} ago{label}"))
    elif job.get("checkpoints"):
        lines.append(Line(f"saved no readable checkpoint in {job['checkpoints']} on this host"))
    if (left_s := job.get("endsInS")) is not None:
        text = f"in {duration(left_s)}" if left_s > 0 else f"{duration(-left_s)} ago"
        lines.append(Line(f"ends  {text}", left_s <= 0))
    return lines


def _said(job: Message) -> list[Line]:
    return [Line(f"from  {job['name']}{_source(job)}")]


def count_of(wanted: str) -> str:
    """`1 node`, `2:4 nodes`."""
    return "1 node" if wanted == "1" else f"{wanted} nodes"


def _source(job: Message) -> str:
    if job["source"] == "coordinator":
        took = f", {_milliseconds(1e3 * job['storeLatencyS'])}" if "storeLatencyS" in job else ""
        store = f"; store: {job['store']}{took}" if job["store"] else ""
        return f", the coordinator{store}"
    if "announcedAgeS" not in job:
        return " (its own state is current; nothing is announced of other nodes yet)"
    return f" (its own state is current; other nodes as announced {duration(job['announcedAgeS'])} ago)"


def _milliseconds(length_ms: float) -> str:
    return f"{length_ms:.{0 if length_ms >= 9.95 else 1}f} ms" if length_ms >= 0.95 else f"{length_ms:.2g} ms"


def _nodes(job: Message, workers: Sequence[Message], *, wide: bool) -> list[Line]:
    if not job["nodes"] and not _others(job):
        return [Line("no node of a round is known yet")]
    cells = {one["name"]: "".join(map(_cell, one["workers"])) for one in workers}
    shown = list(job["nodes"])
    total = len(shown) + _others(job).get("nodes", 0)
    if total > NODES_MAX and not wide:
        shown = [each for each in shown if _is_odd(each, job)]
    rows = [("NODE", "STATE", "LAST SIGN", "RANKS", "WORKERS", "LEFT", "NOTE")]
    for each in shown:
        # What a node said before it fell silent is not why it is odd.
        says_why = _is_odd(each, job) and _state(each, job) not in ("LOST", "SILENT")
        why = each.get("because", "") if wide or says_why else ""
        notes = ("this agent" if each.get("own") else "", why, _last_failure(each, job))
        heard = duration(each["heardAgeS"]) if "heardAgeS" in each else "?"
        known = _begun(cells[each["name"]], each) if each["name"] in cells else _guess(each, job)
        left = str(each["restartsLeft"]) if "restartsLeft" in each else "?"
        age = "-" if each.get("own") else heard
        note = "; ".join(filter(None, notes))
        cells_or_counts = known if wide or len(known) <= CELLS_MAX else _counted(known)
        rows.append((each["name"], _state(each, job), age, _ranks(each), cells_or_counts, left, note))
    widths = [max(len(row[at]) for row in rows) for at in range(6)]
    odd = [PLAIN, *(_is_odd(each, job) for each in shown)]
    lines = [
        Line("  ".join(cell.ljust(size) for cell, size in zip(row, [*widths, 0], strict=True)).rstrip(), flag)
        for row, flag in zip(rows, odd, strict=True)
    ]
    if len(shown) < total:
        lines.append(Line(f"{count(total - len(shown), 'other node')} without trouble"))
    return lines


def _others(job: Message) -> Message:
    """Nodes that a brief answer does not list."""
    found: Message = job.get("others") or {}
    return found


def _ranks(node: Message) -> str:
    if "groupRank" not in node:
        return "-"
    first, last = node.get("rankOffset", 0), node.get("rankOffset", 0) + node.get("nproc", 0) - 1
    return f"{first}" if first == last else f"{first}-{last}"


def _state(node: Message, job: Message) -> str:
    state = str(node.get("state", ""))
    if state == "waiting" and node.get("waits") and job["phase"] == "running":
        return "spare"
    if state not in ("lost", "ended", "leaving") and _is_silent(node, job):
        return "SILENT"
    return state.upper() if state in ("lost", "broken") else state


def _is_silent(node: Message, job: Message) -> bool:
    return (
        bool(job["leaseS"])
        and not node.get("own")
        and node.get("heardAgeS", 0.0) > SILENT_PART_OF_LEASE * job["leaseS"]
    )


def _is_odd(node: Message, job: Message) -> bool:
    return _state(node, job) not in ("working", "finished", "spare", "unknown", "waiting", "joining", "ended")


def _last_failure(node: Message, job: Message) -> str:
    """What failed on this node at the end of the last round; empty where nothing did."""
    ended = job.get("ended") or {}
    rank, here, what = str(ended.get("failure", "")).partition(f" on {node['name']}, ")
    return f"{rank.partition(' (')[0]} failed in round {ended['round']}: {what}" if here else ""


def _cell(worker: Message) -> str:
    """`=` runs, `i` imports, `z` stands still, `!` was stopped by a signal or is a zombie, `x` has exited."""
    state = worker["state"]
    if state != "running":
        return "x" if state == "exited" else "!"
    if worker.get("importing"):
        return "i"
    return "z" if worker.get("markAgeS", 0.0) > STILL_S else "="


def _counted(cells: str) -> str:
    """`297= 2z 1x`: the most frequent first."""
    return " ".join(f"{number}{cell}" for cell, number in Counter(cells).most_common())


def _begun(cells: str, node: Message) -> str:
    """Cells of a node whose agent is here; `.` for a worker that is about to be started."""
    begins = node.get("state") == "working" and "groupRank" in node
    return (cells.ljust(node.get("nproc", 0), ".") if begins else cells) or "-"


def _guess(node: Message, job: Message) -> str:
    """Cells of a node whose agent is on another host: only what its record says."""
    runs = node.get("state") == "working" and not _is_silent(node, job)
    return ("=" if runs else "?") * node.get("nproc", 0) if "groupRank" in node else "-"


def _latest(events: Sequence[Message]) -> list[Message]:
    """The last ones, without two that say the same, the newest first."""
    found: list[Message] = []
    for each in reversed(events):
        if not found or each["because"] not in found[-1]["because"]:
            found.append(each)
        if len(found) == EVENTS_MAX:
            break
    return found


def _event(event: Message) -> str:
    failure = f": {event['failure']}" if event.get("failure") and event["failure"] not in event["because"] else ""
    return f"{'job' if event['what'] == 'announced' else event['node']}  {event['because']}{failure}"


def _ago(age_s: float) -> str:
    return duration(max(0.0, age_s))


def _next(job: Message) -> str:
    if job["outcome"]:
        return f"nothing: the job {job['outcome']}      elasticctl explain"
    if job["storeTrouble"]:
        return "workers go on while the store is away      elasticctl events -f"
    silent = [each for each in job["nodes"] if _state(each, job) == "SILENT"]
    if silent:
        left_s = max(0.0, job["leaseS"] - silent[0]["heardAgeS"])
        return f"{silent[0]['name']} is lost in about {duration(left_s)}      elasticctl explain"
    if job["phase"] in ("gathering", "last call"):
        return "a round, once enough nodes have joined      elasticctl events -f"
    return "elasticctl stacks | logs all -f | explain | top"
