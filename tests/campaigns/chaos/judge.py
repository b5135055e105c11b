"""Whether a run kept the failover contract. Reads only the run's folder, so a kept run can be judged again."""

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

from . import handover
from .goodput import check_accounts
from .plan import Plan
from .replay import FINISHED, Replay

SETTLED_S = 4.0
"""A job must succeed if its last fault was so long before its first worker finished."""
ACCOUNTS = "accounts of workers' seconds"


@dataclass
class Verdict:
    """The judgement of one run."""

    wrong: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    """How often each thing was seen in it, for the campaign's figures."""
    worst: float = 0.0
    """The largest part by which an account of workers' seconds was off the wall clock."""

    def account(self, facts: list[dict[str, Any]], lines: dict[str, list[dict[str, Any]]]) -> None:
        """Check the accounts in the agents' events."""
        try:
            checked = check_accounts(facts, lines)
        except Violation as violation:
            self.wrong.append(str(violation))
        else:
            self.seen[ACCOUNTS] += checked.number
            self.worst = checked.worst


def judge(folder: Path) -> Verdict:
    """Check the history in this folder against the invariants, docs/exit-codes.md and the failover contract."""
    plan = Plan.from_dict(json.loads((folder / "plan.json").read_text()))
    facts = read_lines(folder / "facts.jsonl")
    lines = events_of(plan, folder)
    verdict = Verdict()
    if handover.was_handed_over(facts, lines):
        _judge_handover(verdict, handover.Handover(plan, facts, lines), folder)
        verdict.account(facts, lines)
        return verdict
    replay = Replay(plan)
    try:
        _pass_all_on(replay, facts, lines)
        all_ended(facts)
        _check_statuses(replay, folder, facts, lines)
        _check_outcome(replay, plan, facts)
    except Violation as violation:
        verdict.wrong.append(str(violation))
    verdict.account(facts, lines)
    _count(verdict.seen, replay, facts)
    return verdict


def _judge_handover(verdict: Verdict, run: handover.Handover, folder: Path) -> None:
    names = [fact["node"] for fact in run.all("ended")]
    texts = {name: (folder / f"stderr-{name}.txt").read_text().splitlines() for name in names}
    try:
        all_ended(run.facts)
        handover.check(run, {name: text[-1] if text else "" for name, text in texts.items()})
        if must := handover.must_go_on(run, SETTLED_S):
            handover.need(handover.succeeded(run), handover.GOES_ON, "it did not succeed")
        verdict.seen["jobs whose host was hit that had to succeed"] += must
    except Violation as violation:
        verdict.wrong.append(str(violation))
    handover.count(verdict.seen, run)
    _count_facts(verdict.seen, run.facts)


def events_of(plan: Plan, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The events of each agent that started."""
    return {start.name: read_lines(folder / f"events-{start.name}.jsonl") for start in plan.starts}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _pass_all_on(replay: Replay, facts: list[dict[str, Any]], lines: dict[str, list[dict[str, Any]]]) -> None:
    """Pass everything on, in the order of the one clock."""
    idents = _identities(facts, lines)
    history = [(fact.get("started_s", fact["at_s"]), fact.get("node", ""), fact) for fact in facts]
    for name, written in lines.items():
        history += [(line["at_s"], name, line) for line in written]
    for at_s, name, what in sorted(history, key=lambda each: each[0]):
        replay.world.now = at_s
        if what["what"] == "start":
            replay.started(name, idents.get(name, name), what["nproc"])
        else:
            _pass_on(replay, name, what)


def _identities(facts: list[dict[str, Any]], lines: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """The identities of the nodes that had a place in a round, by name."""
    by_pid = {str(fact["pid"]): fact["node"] for fact in facts if fact["what"] == "start"}
    members = [each for written in lines.values() for line in written for each in line.get("members", ())]
    return {by_pid[each["name"].rpartition(":")[2]]: each["node"] for each in members}


def _pass_on(replay: Replay, name: str, what: dict[str, Any]) -> None:
    kind = what["what"]
    if kind == "announced":
        replay.announced(what)
    elif kind == "event":
        replay.event(replay.node(name), what)
    elif kind == "concluded":
        replay.concluded(replay.node(name), what)
    elif kind == "worker":
        replay.worker(replay.node(name), what)
    elif kind == "order":
        replay.ordered(replay.node(name), what)
    elif kind == "fault":
        replay.fault(replay.node(name), what["kind"])
    elif kind == "thaw":
        replay.thawed(replay.node(name))
    elif kind == "ended":
        replay.ended(replay.node(name), what)


def all_ended(facts: list[dict[str, Any]]) -> None:
    for fact in facts:
        if fact["what"] == "hang":
            raise Violation(f"{ENDING}; but {fact['nodes']} hung")
        if fact["what"] == "orphan":
            raise Violation(f"nothing outlives its agent; but process {fact['pid']} did: {fact['command']}")


def _check_statuses(
    replay: Replay, folder: Path, facts: list[dict[str, Any]], lines: dict[str, list[dict[str, Any]]]
) -> None:
    """The process's exit status is the one of its verdict, and its last line names it."""
    for fact in facts:
        if fact["what"] != "ended":
            continue
        name, code = fact["node"], fact["code"]
        node = replay.node(name)
        kills = [f["at_s"] for f in facts if f["what"] == "fault" and f["kind"] == "kill" and f["node"] == name]
        concluded_s = [line["at_s"] for line in lines[name] if line["what"] == "concluded"]
        # One that has concluded may end by itself before the signal reaches it.
        if kills and not (code >= 0 and concluded_s and concluded_s[0] < kills[0]):
            replay.checkers.need(code == -9, CODED, f"{name} was killed and exited with {code}")
            continue
        if not lines[name] and node.ident in replay.checkers.asked:
            replay.checkers.need(
                code in (-15, 143), CODED, f"{name} was stopped before it began and exited with {code}"
            )
            continue
        printed = (folder / f"stderr-{name}.txt").read_text().splitlines()
        last = printed[-1] if printed else ""
        replay.checkers.need(f"exit {code}:" in last, CODED, f"{name} exited with {code}; its last line is {last!r}")
        concluded = [line["exit_code"] for line in lines[name] if line["what"] == "concluded"]
        replay.checkers.need(
            concluded == [code], CODED, f"{name} exited with {code}; the exit codes of its verdicts are {concluded}"
        )
        # Workers that may first save may also finish: then there is nothing that was stopped.
        said = " ".join(line["because"] for line in lines[name] if line["what"] == "concluded")
        finished = code == 0 and said.startswith(FINISHED)
        stopped = _was_stopped(lines[name]) and not finished
        replay.checkers.need(not stopped or code == 143, CODED, f"{name} was stopped and exited with {code}")


def _was_stopped(lines: list[dict[str, Any]]) -> bool:
    """Whether the agent received a signal in a phase in which it would have gone on."""
    going = {Phase.CONNECTING.value, Phase.JOINING.value, Phase.WORKING.value, Phase.FINISHED.value}
    events = [line for line in lines if line["what"] == "event"]
    return any(after["happened"] == "SignalReceived" and before["phase"] in going for before, after in pairwise(events))


def _check_outcome(replay: Replay, plan: Plan, facts: list[dict[str, Any]]) -> None:
    """Where the faults allow only one outcome, the job must have it."""
    rendezvous = replay.world.rendezvous
    outcome = rendezvous.outcome if rendezvous is not None else None
    how = outcome.value if outcome is not None else "left open"
    if _must_succeed(plan, facts):
        replay.checkers.need(outcome is Outcome.SUCCEEDED, "a job with nodes and restarts enough succeeds", f"it {how}")
    if _must_fail(plan, facts):
        replay.checkers.need(outcome is Outcome.FAILED, "without restarts a failure ends the job at once", f"it {how}")
    if outcome is Outcome.FAILED and rendezvous is not None:
        for node in replay.world.nodes.values():
            verdict = node.verdict
            same = verdict is None or verdict.exit_code != 1 or rendezvous.because in verdict.because
            replay.checkers.need(
                same,
                "all nodes of a failed job name the same cause",
                f"{node.name} ends with {verdict}, not with {rendezvous}",
            )


def _must_succeed(plan: Plan, facts: list[dict[str, Any]]) -> bool:
    """Enough nodes without a fault, failures within every budget, all of it well before the first worker finished, and
    no node so late that the barrier ends before it finishes."""
    finishes = [fact["at_s"] for fact in facts if fact["what"] == "order" and fact["how"] == "exit 0"]
    actions = [fact for fact in facts if fact["what"] in ("fault", "thaw", "start")]
    failures = [fact for fact in facts if fact["what"] == "order" and fact["how"] != "exit 0"]
    if not finishes or any(each["at_s"] > finishes[0] - SETTLED_S for each in (*actions, *failures)):
        return False
    if any(count > plan.max_restarts for count in Counter(each["node"] for each in failures).values()):
        return False
    touched = {fact["node"] for fact in facts if fact["what"] == "fault" and fact["kind"] != "crash"}
    sound = [start for start in plan.starts if start.name not in touched]
    late_s = [start.finishes_late_s for start in plan.starts]
    return len(sound) >= plan.min_nodes and max(late_s) - min(late_s) < plan.barrier_s - 1.0


def _must_fail(plan: Plan, facts: list[dict[str, Any]]) -> bool:
    """No restarts, and a worker that crashed before any was ordered to finish, in a round with all nodes of the plan:
    no change of membership can have stopped the worker already."""
    if plan.max_restarts or any(start.anchor != "launch" for start in plan.starts):
        return False
    if any(fact["what"] == "fault" and fact["kind"] != "crash" for fact in facts):
        return False
    first = next((fact for fact in facts if fact["what"] == "order"), None)
    if first is None or first["how"] == "exit 0":
        return False
    members = {fact["node"] for fact in facts if fact["what"] == "worker" and fact["round"] == first["round"]}
    return members == {start.name for start in plan.starts}


def _count(seen: Counter[str], replay: Replay, facts: list[dict[str, Any]]) -> None:
    rendezvous = replay.world.rendezvous
    seen[f"job {rendezvous.outcome.value if rendezvous and rendezvous.outcome else 'left open'}"] += 1
    _count_facts(seen, facts)
    harmed = {fact["node"] for fact in facts if fact["what"] == "fault" and fact["kind"] in ("kill", "freeze")}
    unharmed = [fact["pid"] for fact in facts if fact["what"] == "start" and fact["node"] not in harmed]
    for ending in replay.checkers.endings.values():
        seen["unharmed nodes lost"] += sum(f":{pid} was lost" in ending.because for pid in unharmed)
    seen["rounds"] += rendezvous.number if rendezvous else 0
    seen["restarts charged"] += sum(1 for each in replay.checkers.endings.values() if each.charged)
    for ending in replay.checkers.endings.values():
        seen[f"round ended by {ending.kind.value}"] += 1
    seen.update({f"seen: {what}": 1 for what in replay.world.reached.counts})


def _count_facts(seen: Counter[str], facts: list[dict[str, Any]]) -> None:
    for fact in facts:
        if fact["what"] == "fault":
            seen[f"fault {fact['kind']}"] += 1
        elif fact["what"] == "ended":
            seen[f"status {fact['code']}"] += 1
        elif fact["what"] == "worker":
            seen["workers"] += 1
        elif fact["what"] == "start":
            seen["agents"] += 1
