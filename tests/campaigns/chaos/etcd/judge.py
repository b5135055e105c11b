"""Whether a run on etcd kept the failover contract, by the history read from etcd. Reads only the run's folder."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_agent.rendezvous.etcd.store import KEEP_VERSIONS
from simulation.checks.checkers import Violation

from ..judge import Verdict, all_ended, events_of, read_lines
from ..plan import FINISH, Plan
from .plan import NODES, SERVERS

Line = dict[str, Any]

NOTICED_S = 1.0
"""How long after the end of the lease a departure may be announced."""
BUSY_S = 2.0
"""How much later anything may be because the host is busy."""
HARM = ("kill", "freeze", "cut")


@dataclass
class RunHistory:
    """The history of a run, as read from etcd and recorded by the runner."""

    plan: Plan
    facts: list[Line]
    etcd: list[Line]
    announcements: list[Line] = field(default_factory=list)
    """In their order; each with `at_s`."""
    idents: dict[str, str] = field(default_factory=dict)
    """Identity of a node to its name in the plan."""

    def __post_init__(self) -> None:
        pids = {str(fact["pid"]): fact["node"] for fact in self.facts if fact["what"] == "start"}
        for line in self.etcd:
            if "round" in line:
                self.announcements.append({**line["round"], "at_s": line["at_s"], "modified": line["modified"]})
            if "name" in line:
                self.idents[line["node"]] = pids[line["name"].rpartition(":")[2]]

    def all(self, what: str, **more: Any) -> list[Line]:
        return [fact for fact in self.facts if fact["what"] == what and more.items() <= fact.items()]

    @property
    def harmed(self) -> dict[str, Line]:
        """The nodes with a fault, by name, and the fault."""
        return {fact["node"]: fact for fact in self.all("fault") if fact["kind"] in HARM}

    def running(self) -> list[Line]:
        """The rounds that ran: the first announcement of each."""
        rounds: dict[int, Line] = {}
        for announced in self.announcements:
            if announced["phase"] == "running":
                rounds.setdefault(announced["number"], announced)
        return list(rounds.values())

    def members(self, announced: Line) -> set[str]:
        return {self.idents[member[0]] for member in announced["members"]}

    def endings(self) -> list[Line]:
        """How rounds ended, as announced with the next round."""
        found: dict[int, Line] = {}
        for announced in self.announcements:
            if announced["ended"]:
                number, kind, because, charged = announced["ended"]
                found[number] = {"round": number, "kind": kind, "because": because, "charged": charged}
        return list(found.values())


def need(holds: bool, what: str, but: object) -> None:
    """Raises Violation."""
    if not holds:
        raise Violation(f"{what}; but {but}")


def judge(folder: Path) -> Verdict:
    """Check the history in this folder against the contract. All jobs of these plans must succeed."""
    plan = Plan.from_dict(json.loads((folder / "plan.json").read_text()))
    verdict = Verdict()
    history = RunHistory(plan, read_lines(folder / "facts.jsonl"), read_lines(folder / "etcd.jsonl"))
    try:
        for check in (
            _faults_were_done,
            _ended,
            _announcements,
            _keys_left,
            _workers,
            _undisturbed,
            _departures,
            _returned,
        ):
            check(history)
        _statuses(history, folder)
    except Violation as violation:
        verdict.wrong.append(str(violation))
    verdict.account(history.facts, events_of(plan, folder))
    _count(verdict.seen, history)
    return verdict


def _faults_were_done(history: RunHistory) -> None:
    """A fault that the runner could not inject is no finding about the product, but must not count as a success."""
    for fact in history.facts:
        need(fact["what"] != "history error", "the history is read from etcd", fact.get("error"))
        need(fact["what"] != "fault over" or not fact["error"], "faults are injected and undone", fact)


def _ended(history: RunHistory) -> None:
    all_ended(history.facts)


def _announcements(history: RunHistory) -> None:
    """Versions follow each other, each written once, by the node that led then."""
    leader, versions, closed = 0, 0, None
    for line in history.etcd:
        if line["key"].endswith("/leader"):
            leader = 0 if line["deleted"] else line["created"]
        number = line["key"].rpartition("/round/")[2]
        if not number.isdigit():
            continue
        if line["deleted"]:
            need(closed or int(number) <= versions - KEEP_VERSIONS + 1, "a recent announcement is not deleted", line)
            continue
        announced = line["round"]
        need(line["version"] == 1, "an announcement is written once", line)
        need(announced["version"] == versions + 1 == int(number), "announcements follow each other", line)
        need(announced["epoch"] == leader, f"only the leader announces, whose epoch is {leader}", line)
        need(not closed or announced["outcome"] == closed, "an outcome is final", line)
        versions, closed = versions + 1, announced["outcome"]
    numbers = [announced["number"] for announced in history.announcements]
    need(numbers == sorted(numbers), "rounds never go back", numbers)
    need(closed == "succeeded", "a job with nodes enough succeeds", f"it {closed or 'was left open'}")


def _keys_left(history: RunHistory) -> None:
    """Only the job's record, with its outcome."""
    [left] = history.all("keys left")
    need(left["keys"] == ["job"], "after the job only its record is left", left["keys"])
    records = [line["outcome"] for line in history.etcd if line["key"] == "job" and not line["deleted"]]
    need(records[-1] == "succeeded", "the record has the outcome of the job", records)


def _workers(history: RunHistory) -> None:
    """Each worker has the place that was announced, and no worker of an earlier round is alive beside it, except on
    nodes with a fault, which cannot have stopped them."""
    rounds = {announced["number"]: announced for announced in history.running()}
    for worker in history.all("worker"):
        announced = rounds.get(worker["round"])
        need(announced is not None, "workers run in announced rounds", worker)
        assert announced is not None
        places = {member[0]: member for member in announced["members"]}
        place = places.get(worker["ident"])
        need(place is not None, f"only members run in round {worker['round']}", worker)
        assert place is not None
        world = sum(member[4] for member in announced["members"])
        right = (place[3] + worker["local_rank"], world) == (worker["rank"], worker["world_size"])
        need(right, f"workers have the ranks that were announced, {place} of {world}", worker)
        stale = [each for each in worker["alive"] if each.split(".")[0] not in history.harmed]
        need(not stale, f"round {worker['round']} begins when all earlier workers have exited", stale)
    for announced in rounds.values():
        ranks = [rank for member in announced["members"] for rank in range(member[3], member[3] + member[4])]
        need(sorted(ranks) == list(range(len(ranks))), "ranks are dense", announced)


def _undisturbed(history: RunHistory) -> None:
    """If only the store had faults, there is one round with all nodes, and each worker starts once and finishes."""
    if history.harmed:
        return
    rounds = [history.members(announced) for announced in history.running()]
    need(rounds == [set(_names(history))], "an outage of the store disturbs no node", f"{rounds}, {history.endings()}")
    need(not history.endings(), "an outage of the store ends no round", history.endings())
    started = Counter(worker["node"] for worker in history.all("worker"))
    due = {start.name: start.nproc for start in history.plan.starts}
    need(started == due, "each worker starts once", f"{started}, not {due}")


def _names(history: RunHistory) -> list[str]:
    return [start.name for start in history.plan.starts]


def _departures(history: RunHistory) -> None:
    """Rounds end because of nodes with a fault, and of nodes that arrive; no other node is lost or charged."""
    pids = {fact["node"]: fact["pid"] for fact in history.all("start")}
    for ending in history.endings():
        need(not ending["charged"], "no worker failed, so none is charged", ending)
        fenced = {name for name, pid in pids.items() if f":{pid}: this node was cut off" in ending["because"]}
        need(ending["kind"] != "failure" or bool(fenced), "no worker failed on its own", ending)
        need(fenced <= history.harmed.keys(), "a node that lives keeps its workers", ending)
        lost = {name for name, pid in pids.items() if f":{pid} was lost" in ending["because"]}
        need(lost <= history.harmed.keys(), "a node that lives is not lost", ending)
        need(ending["kind"] != "departure" or bool(history.harmed), "a departure has a cause", ending)
    for name, injected in history.harmed.items():
        if not _must_be_lost(history, name, injected):
            continue
        due_s = injected["at_s"] + history.plan.lease_s + NOTICED_S
        over = [
            announced["at_s"]
            for announced in history.announcements
            if announced["phase"] == "over" and announced["at_s"] > injected["at_s"]
        ]
        need(bool(over) and over[0] <= due_s + BUSY_S, f"{name} is lost within lease and 1 s", over[:1])
        after = [history.members(announced) for announced in history.running() if announced["at_s"] > injected["at_s"]]
        need(any(name not in members for members in after), f"the others go on without {name}", after)


def _must_be_lost(history: RunHistory, name: str, injected: Line) -> bool:
    """A member with workers that is away for longer than its lease, while the store has no fault."""
    fault = history.plan.faults[injected["fault"]]
    alone = len(history.plan.faults) == 1 and fault.anchor == "round 1"
    running = [announced for announced in history.running() if announced["at_s"] < injected["at_s"]]
    worked = bool(running) and name in history.members(running[-1])
    outlasts = fault.kind == "kill" or fault.for_s > history.plan.lease_s + NOTICED_S + BUSY_S
    return alone and worked and outlasts


def _returned(history: RunHistory) -> None:
    """A node that was away and comes back is in the last round, as the same node, unless the job was finishing."""
    for name, injected in history.harmed.items():
        if injected["kind"] == "kill":
            continue
        back = next((fact["at_s"] for fact in history.all("thaw", node=name)), None)
        fault = history.plan.faults[injected["fault"]]
        if back is None or fault.anchor == FINISH:
            continue
        last = history.running()[-1]
        need(name in history.members(last), f"{name} is back at the end", history.members(last))
    finished = {history.idents[line["node"]] for line in history.etcd if line.get("state") == "finished"}
    due = {name for name in _names(history) if name not in history.harmed} - _late(history)
    need(due <= finished, "every node without a fault finishes", finished)


def _late(history: RunHistory) -> set[str]:
    """Nodes that came when others were already finishing: no round is ended for them."""
    first = min((fact["at_s"] for fact in history.all("order")), default=0.0)
    came: dict[str, float] = {}
    for line in history.etcd:
        if "name" in line:
            came.setdefault(history.idents[line["node"]], line["at_s"])
    # Nodes that arrive are collected for the quiet time, before they end a round.
    return {name for name, at_s in came.items() if at_s > first - BUSY_S - history.plan.quiet_s}


def _statuses(history: RunHistory, folder: Path) -> None:
    for fact in history.all("ended"):
        name, code = fact["node"], fact["code"]
        killed = bool(history.all("fault", node=name, kind="kill"))
        last = (folder / f"stderr-{name}.txt").read_text().splitlines()[-1:]
        if killed:
            need(code == -9, f"{name} was killed", code)
        else:
            need(code == 0 and "exit 0:" in "".join(last), f"{name} ends with the job's success", f"{code}, {last}")
            need(not fact["alive"], f"nothing outlives {name}", fact["alive"])
    need(len(history.all("ended")) == NODES, "every agent ends", history.all("ended"))


def _count(seen: Counter[str], history: RunHistory) -> None:
    for fact in history.facts:
        if fact["what"] == "fault":
            where = "servers" if fact["kind"] in SERVERS else "node"
            seen[f"{where}: {fact['kind']} at {history.plan.faults[fact['fault']].anchor}"] += 1
        elif fact["what"] == "fault skipped" and fact.get("because"):
            seen[f"LEFT OUT: {fact['because']}"] += 1
        elif fact["what"] in ("worker", "start", "servers"):
            seen[{"worker": "workers", "start": "agents", "servers": f"etcd {fact.get('version')}"}[fact["what"]]] += 1
    seen["announcements"] += len(history.announcements)
    seen["terms of coordinators"] += len({announced["epoch"] for announced in history.announcements})
    seen["rounds"] += len(history.running())
    for ending in history.endings():
        seen[f"rounds ended by {ending['kind']}"] += 1
    seen[f"jobs {history.announcements[-1]['outcome'] if history.announcements else 'without an announcement'}"] += 1
