"""Whether a run kept the contract where the node that hosted a c10d store was killed or left, and another may host it.

The simulator's checkers know one coordinator whose every announcement counts. Here the last ones of a host that was
killed may be lost, as far as no majority had read them, so this judge looks at what nodes did.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from elastic_agent.rendezvous.failures import EndKind
from simulation.checks.checkers import Violation
from simulation.checks.invariants import (
    AGREED,
    CHARGED,
    CODED,
    COUNTED,
    DENSE,
    EMPTY,
    FORWARD,
    LEFT_NO_WORKER,
    ONE_WORLD,
)

from .plan import Plan

Line = dict[str, Any]

READ_S = 0.5
"""How long a majority may need to read that a round has begun; before that its host has no successor by it."""
GOES_ON = "where another node may host the store, the job goes on"


@dataclass
class Handover:
    """What was done and seen in one run."""

    plan: Plan
    facts: list[Line]
    lines: dict[str, list[Line]]

    def all(self, what: str, **more: Any) -> list[Line]:
        return [fact for fact in self.facts if fact["what"] == what and more.items() <= fact.items()]

    @property
    def gone(self) -> dict[str, float]:
        """When nodes were killed or asked to leave."""
        return {fact["node"]: fact["at_s"] for kind in ("term", "kill") for fact in self.all("fault", kind=kind)}

    def failures(self, number: int, node: str = "") -> list[Line]:
        """Workers of this round that were ordered to fail."""
        found = [fact for fact in self.all("order", round=number) if fact["how"] != "exit 0"]
        return [fact for fact in found if node in ("", fact["node"])]

    def rounds(self) -> dict[tuple[int, str], list[Line]]:
        """The workers of each round, by its number and its master: a job that begins again counts from 1."""
        found: dict[tuple[int, str], list[Line]] = defaultdict(list)
        for fact in sorted(self.all("worker"), key=lambda each: each["started_s"]):
            found[fact["round"], fact["master"]].append(fact)
        return found

    def endings(self) -> dict[int, list[Line]]:
        """How each round ended, as one host or several announced it."""
        found: dict[int, list[Line]] = defaultdict(list)
        for written in self.lines.values():
            for line in written:
                if line["what"] == "announced" and line["ended"] and line["number"] > line["ended"]["round"]:
                    found[line["ended"]["round"]].append(line["ended"])
        return found

    def out_at(self, name: str) -> float:
        """When this node was out of the job at the latest: no worker of it, and no agent."""
        return max((fact["at_s"] for fact in self.all("ended", node=name)), default=float("inf"))


def was_handed_over(facts: list[Line], lines: dict[str, list[Line]]) -> bool:
    """Whether a node was killed, or asked to leave, that hosted the store; or another one hosts it, as it came when the
    first one's job was over, and begins its own."""
    hit = any(fact["what"] == "fault" and fact["kind"] != "freeze" and fact.get("hosts") for fact in facts)
    return hit or sum(any(line["what"] == "announced" for line in written) for written in lines.values()) > 1


def need(holds: bool, what: str, but: object) -> None:
    """Raises Violation."""
    if not holds:
        raise Violation(f"{what}; but {but}")


def check(run: Handover, last_lines: dict[str, str]) -> None:
    """`last_lines`: what each agent wrote last. Raises Violation."""
    _one_world(run)
    _one_job(run)
    _charges(run)
    for fact in run.all("ended"):
        _status(run, fact, last_lines[fact["node"]])


def _one_world(run: Handover) -> None:
    """No worker of an older round, or of another job, lives when one starts; its own kernel says so."""
    exits = {fact["pid"]: fact["at_s"] for fact in run.all("exited")}
    for fact in run.all("worker"):
        own = [name for name in fact["alive"] if name.startswith(f"{fact['node']}.")]
        need(not own, EMPTY, f"{own} live when {fact['node']} starts {fact['round']}")
        need(not fact["alive"], ONE_WORLD, f"{fact['alive']} live when {fact['node']} starts {fact['round']}")
        for other in run.all("worker"):  # locks of equal numbers say nothing of each other
            twin = other["round"] == fact["round"] and other["master"] != fact["master"]
            beside = other["started_s"] < fact["started_s"] < exits.get(other["pid"], float("inf"))
            need(not (twin and beside), ONE_WORLD, f"{other['node']} is in another round {fact['round']}")


def _one_job(run: Handover) -> None:
    """Rounds only go forward while anybody of them is left, and each has one shape."""
    began: list[tuple[int, float, set[str]]] = []
    for (number, master), workers in sorted(run.rounds().items(), key=lambda each: each[1][0]["started_s"]):
        size, ranks = workers[0]["world_size"], [fact["rank"] for fact in workers]
        need(all(fact["world_size"] == size for fact in workers), AGREED, f"round {number} at {master}: {workers}")
        need(len(set(ranks)) == len(ranks) and max(ranks) < size, DENSE, f"round {number} has the ranks {ranks}")
        at_s = workers[0]["started_s"]
        for other, since_s, nodes in began:
            left = [name for name in nodes if run.out_at(name) > at_s and name not in run.gone]
            need(number > other or not left, FORWARD, f"{number} begins behind {other} of {since_s:.3f}, with {left}")
        began.append((number, at_s, {fact["node"] for fact in workers}))


def _charges(run: Handover) -> None:
    endings = run.endings()
    names = {fact["ident"]: fact["node"] for fact in run.all("worker")}
    for number, found in endings.items():
        for charged in {each["charged"] for each in found if each["charged"]}:
            kinds = {each["kind"] for each in found if each["charged"]}
            need(kinds == {EndKind.FAILURE.value}, CHARGED, f"round {number} ended so: {found}")
            own = run.failures(number, names.get(charged, charged))
            need(
                bool(own),
                CHARGED,
                f"{names.get(charged)} was charged for round {number}, where none of its workers failed",
            )
            left = _left_first(run, number)
            need(not left, CHARGED, f"{names.get(charged)} was charged for round {number}, which {left} left first")
    for fact in run.all("worker"):
        before = [found for number, found in endings.items() if number < fact["round"]]
        paid = [[each["charged"] == fact["ident"] for each in found] for found in before]
        least, most = sum(map(all, paid)), sum(map(any, paid))
        but = f"{fact['node']} used {fact['restarts']} in round {fact['round']}, charged {least} to {most}"
        need(least <= fact["restarts"] <= most, COUNTED, but)


def _left_first(run: Handover, number: int) -> str:
    """The member of this round that was killed or asked to leave while its workers ran, before any worker failed."""
    failed_s = min((fact["at_s"] for fact in run.failures(number)), default=float("inf"))
    exits = {fact["pid"]: fact["at_s"] for fact in run.all("exited")}
    for fact in run.all("worker", round=number):
        gone_s = run.gone.get(fact["node"], float("inf"))
        if fact["started_s"] < gone_s < failed_s and gone_s < exits.get(fact["pid"], float("inf")):
            return str(fact["node"])
    return ""


def _status(run: Handover, fact: Line, last: str) -> None:
    name, code = fact["node"], fact["code"]
    concluded = [line["exit_code"] for line in run.lines[name] if line["what"] == "concluded"]
    if code == -9:
        need(bool(run.all("fault", node=name, kind="kill")), CODED, f"{name} was killed by nobody of the campaign")
        return
    need(not fact["alive"], LEFT_NO_WORKER, f"{fact['alive']} outlived {name}")
    asked = run.all("fault", node=name, kind="term")
    if asked and not run.lines[name]:
        need(code in (-15, 143), CODED, f"{name} was stopped before it began and exited with {code}")
        return
    need(f"exit {code}:" in last and concluded == [code], CODED, f"{name} exited with {code} and {concluded}: {last!r}")
    need(code in (0, 1, 76, 80, 82, 143), CODED, f"{name} exited with {code}: {last}")
    if code == 143:
        need(bool(asked), CODED, f"{name} exited with {code}, and nobody asked it to leave")
    elif code == 1:
        need(_budget_spent(run), CODED, f"{name} exited with {code}: {last}")
    elif code == 80:
        successors = _successors(run, name, fact["at_s"])
        need(not successors, GOES_ON, f"{name} exited with {code} though {successors} may have hosted it: {last}")


def _budget_spent(run: Handover) -> bool:
    """Whether some node had more failures than restarts, or too few nodes were left for a restart."""
    failed = Counter({name: len({each["round"] for each in run.all("order", node=name) if each["how"] != "exit 0"})
                      for name in run.lines})  # fmt: skip
    finishing = any(line.get("finishing") for written in run.lines.values() for line in written)
    return max(failed.values(), default=0) > run.plan.max_restarts or (finishing and any(failed.values()))


def _successors(run: Handover, name: str, at_s: float) -> list[str]:
    """The nodes that could have been elected when the last host died before this: living members of the last round
    that had begun. Who never was in the job is served by nobody where there is none."""
    kills = [fact["at_s"] for fact in run.all("fault") if fact["kind"] != "freeze" and fact.get("hosts")]
    died_s = max((each for each in kills if each < at_s), default=0.0)
    begun = [each for each in run.rounds().values() if each[0]["started_s"] < died_s - READ_S]
    if not begun:
        return []
    members = {fact["node"] for fact in begun[-1]}
    return sorted(each for each in members - run.gone.keys() if run.out_at(each) >= at_s)


def must_go_on(run: Handover, settled_s: float) -> bool:
    """Whether the job must succeed: the faults were over in time, a round of two and more nodes had begun before the
    first of the host, enough nodes had none, and each failure was within every budget."""
    finishes = [fact["at_s"] for fact in run.all("order", how="exit 0")]
    done = [fact for fact in run.facts if fact["what"] in ("fault", "thaw", "start")]
    failures = [fact for fact in run.all("order") if fact["how"] != "exit 0"]
    if not finishes or any(each["at_s"] > finishes[0] - settled_s for each in (*done, *failures)):
        return False
    hits = [each["at_s"] for each in run.all("fault") if each["kind"] != "freeze" and each.get("hosts")]
    if not hits:
        return False
    begun = [each for each in run.rounds().values() if each[0]["started_s"] < min(hits) - READ_S]
    sound = {start.name for start in run.plan.starts} - {
        each["node"] for each in run.all("fault") if each["kind"] != "crash"
    }
    if not begun or not sound & {fact["node"] for fact in begun[-1]}:
        return False
    if any(count > run.plan.max_restarts for count in Counter(each["node"] for each in failures).values()):
        return False
    late_s = [start.finishes_late_s for start in run.plan.starts]
    return len(sound) >= run.plan.min_nodes and max(late_s) - min(late_s) < run.plan.barrier_s - 1.0


def succeeded(run: Handover) -> bool:
    """Whether the job was announced to have succeeded, by whoever hosted it last."""
    outcomes = [line["outcome"] for written in run.lines.values() for line in written if line["what"] == "announced"]
    return "succeeded" in outcomes


def count(seen: Counter[str], run: Handover) -> None:
    """For the campaign's figures."""
    hit = any(fact.get("hosts") and fact["kind"] != "freeze" for fact in run.all("fault"))
    seen["jobs whose host was killed or left" if hit else "jobs that another node began anew behind the first"] += 1
    for fact in run.all("fault"):
        if fact.get("hosts"):
            seen[f"fault {fact['kind']} of the host"] += 1
    seen["rounds"] += len(run.rounds())
    seen["restarts charged"] += sum(any(each["charged"] for each in found) for found in run.endings().values())
    seen["jobs that succeeded behind it"] += hit and succeeded(run)
