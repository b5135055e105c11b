"""Whether what a run left behind is what the contract says. Reads only the folder: a kept run can be judged again."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from elastic_agent.agent.lifecycle.state import Phase
from elastic_agent.rendezvous.records import Outcome
from simulation.checks.checkers import Violation
from simulation.checks.invariants import CODED, ENDING

from .plan import Plan
from .witness import Witness

SETTLED_S = 4.0
"""How long before the first worker finishes the last fault must have been, for a job to be due to succeed."""


@dataclass
class Verdict:
    """What came of one run."""

    wrong: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    """What it came across, for the campaign's figures."""


def judge(folder: Path) -> Verdict:
    """Hold the history in this folder to the invariants, its exit codes to their page, its end to the contract."""
    plan = Plan.from_dict(json.loads((folder / "plan.json").read_text()))
    facts = read_lines(folder / "facts.jsonl")
    lines = {start.name: read_lines(folder / f"events-{start.name}.jsonl") for start in plan.starts}
    verdict = Verdict()
    witness = Witness(plan)
    try:
        _replay(witness, facts, lines)
        all_ended(facts)
        _statuses(witness, folder, facts, lines)
        _as_agreed(witness, plan, facts)
    except Violation as violation:
        verdict.wrong.append(str(violation))
    _count(verdict.seen, witness, facts)
    return verdict


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _replay(witness: Witness, facts: list[dict[str, Any]], lines: dict[str, list[dict[str, Any]]]) -> None:
    """Everything, in the order of the one clock."""
    idents = _identities(facts, lines)
    history = [(fact.get("started_s", fact["at_s"]), fact.get("node", ""), fact) for fact in facts]
    for name, written in lines.items():
        history += [(line["at_s"], name, line) for line in written]
    for at_s, name, what in sorted(history, key=lambda each: each[0]):
        witness.history.now = at_s
        if what["what"] == "start":
            witness.came(name, idents.get(name, name), what["nproc"])
        else:
            _tell(witness, name, what)


def _identities(facts: list[dict[str, Any]], lines: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """What the protocol calls the nodes, as far as they had a place in a round."""
    by_pid = {str(fact["pid"]): fact["node"] for fact in facts if fact["what"] == "start"}
    members = [each for written in lines.values() for line in written for each in line.get("members", ())]
    return {by_pid[each["name"].rpartition(":")[2]]: each["node"] for each in members}


def _tell(witness: Witness, name: str, what: dict[str, Any]) -> None:
    kind = what["what"]
    if kind == "announced":
        witness.announced(what)
    elif kind == "event":
        witness.said(witness.node(name), what)
    elif kind == "concluded":
        witness.ends(witness.node(name), what)
    elif kind == "worker":
        witness.worker(witness.node(name), what)
    elif kind == "order":
        witness.told(witness.node(name), what)
    elif kind == "fault":
        witness.fault(witness.node(name), what["kind"])
    elif kind == "thaw":
        witness.thawed(witness.node(name))
    elif kind == "ended":
        witness.ended(witness.node(name), what)


def all_ended(facts: list[dict[str, Any]]) -> None:
    for fact in facts:
        if fact["what"] == "hang":
            raise Violation(f"{ENDING}; but {fact['nodes']} hung")
        if fact["what"] == "orphan":
            raise Violation(f"nothing outlives its agent; but process {fact['pid']} did: {fact['command']}")


def _statuses(
    witness: Witness, folder: Path, facts: list[dict[str, Any]], lines: dict[str, list[dict[str, Any]]]
) -> None:
    """The process's status is the one the machine gave, and the last line says it."""
    for fact in facts:
        if fact["what"] != "ended":
            continue
        name, code = fact["node"], fact["code"]
        node = witness.node(name)
        killed = any(f["what"] == "fault" and f["kind"] == "kill" and f["node"] == name for f in facts)
        if killed:
            witness.checkers.need(code == -9, CODED, f"{name} was killed and exits {code}")
            continue
        if not lines[name] and node.ident in witness.checkers.asked:
            witness.checkers.need(code in (-15, 143), CODED, f"{name} was stopped before it began and exits {code}")
            continue
        said = (folder / f"stderr-{name}.txt").read_text().splitlines()
        last = said[-1] if said else ""
        witness.checkers.need(f"exit {code}:" in last, CODED, f"{name} exits {code} and says {last!r} last")
        concluded = [line["exit_code"] for line in lines[name] if line["what"] == "concluded"]
        witness.checkers.need(concluded == [code], CODED, f"{name} exits {code}, its machine said {concluded}")
        witness.checkers.need(
            not _was_stopped(lines[name]) or code == 143, CODED, f"{name} was stopped and exits {code}"
        )


def _was_stopped(lines: list[dict[str, Any]]) -> bool:
    """Whether a signal reached it while it meant to go on."""
    going = {Phase.CONNECTING.value, Phase.JOINING.value, Phase.WORKING.value, Phase.FINISHED.value}
    events = [line for line in lines if line["what"] == "event"]
    return any(after["happened"] == "SignalReceived" and before["phase"] in going for before, after in pairwise(events))


def _as_agreed(witness: Witness, plan: Plan, facts: list[dict[str, Any]]) -> None:
    """Where what was done leaves one outcome only, that one must have come."""
    rendezvous = witness.history.rendezvous
    outcome = rendezvous.outcome if rendezvous is not None else None
    how = outcome.value if outcome is not None else "left open"
    if _must_succeed(plan, facts):
        witness.checkers.need(
            outcome is Outcome.SUCCEEDED, "a job with nodes and restarts enough succeeds", f"it {how}"
        )
    if _must_fail(plan, facts):
        witness.checkers.need(outcome is Outcome.FAILED, "without restarts a failure ends the job at once", f"it {how}")
    if outcome is Outcome.FAILED and rendezvous is not None:
        for node in witness.history.nodes.values():
            verdict = node.verdict
            same = verdict is None or verdict.exit_code != 1 or rendezvous.because in verdict.because
            witness.checkers.need(
                same, "all nodes of a failed job name the same cause", f"{node.name} says {verdict}, not {rendezvous}"
            )


def _must_succeed(plan: Plan, facts: list[dict[str, Any]]) -> bool:
    """Enough nodes that nothing befell, failures within every budget, all of it well before anybody finished, and no
    node so late that the barrier ends before it."""
    finishes = [fact["at_s"] for fact in facts if fact["what"] == "order" and fact["how"] == "exit 0"]
    deeds = [fact for fact in facts if fact["what"] in ("fault", "thaw", "start")]
    failures = [fact for fact in facts if fact["what"] == "order" and fact["how"] != "exit 0"]
    if not finishes or any(each["at_s"] > finishes[0] - SETTLED_S for each in (*deeds, *failures)):
        return False
    if any(count > plan.max_restarts for count in Counter(each["node"] for each in failures).values()):
        return False
    touched = {fact["node"] for fact in facts if fact["what"] == "fault" and fact["kind"] != "crash"}
    sound = [start for start in plan.starts if start.name not in touched]
    late_s = [start.finishes_late_s for start in plan.starts]
    return len(sound) >= plan.min_nodes and max(late_s) - min(late_s) < plan.barrier_s - 1.0


def _must_fail(plan: Plan, facts: list[dict[str, Any]]) -> bool:
    """No restarts, and a worker that crashed before anybody was told to finish, in a round that had all the nodes there
    are: so no membership changed that could have had the worker stopped already."""
    if plan.max_restarts or any(start.anchor != "launch" for start in plan.starts):
        return False
    if any(fact["what"] == "fault" and fact["kind"] != "crash" for fact in facts):
        return False
    first = next((fact for fact in facts if fact["what"] == "order"), None)
    if first is None or first["how"] == "exit 0":
        return False
    members = {fact["node"] for fact in facts if fact["what"] == "worker" and fact["round"] == first["round"]}
    return members == {start.name for start in plan.starts}


def _count(seen: Counter[str], witness: Witness, facts: list[dict[str, Any]]) -> None:
    rendezvous = witness.history.rendezvous
    seen[f"job {rendezvous.outcome.value if rendezvous and rendezvous.outcome else 'left open'}"] += 1
    for fact in facts:
        if fact["what"] == "fault":
            seen[f"fault {fact['kind']}"] += 1
        elif fact["what"] == "ended":
            seen[f"status {fact['code']}"] += 1
        elif fact["what"] == "worker":
            seen["workers"] += 1
        elif fact["what"] == "start":
            seen["agents"] += 1
    harmed = {fact["node"] for fact in facts if fact["what"] == "fault" and fact["kind"] in ("kill", "freeze")}
    unharmed = [fact["pid"] for fact in facts if fact["what"] == "start" and fact["node"] not in harmed]
    for ending in witness.checkers.endings.values():
        seen["unharmed nodes lost"] += sum(f":{pid} was lost" in ending.because for pid in unharmed)
    seen["rounds"] += rendezvous.number if rendezvous else 0
    seen["restarts charged"] += sum(1 for each in witness.checkers.endings.values() if each.charged)
    for ending in witness.checkers.endings.values():
        seen[f"round ended by {ending.kind.value}"] += 1
    seen.update({f"seen: {what}": 1 for what in witness.history.reached.counts})
