"""Whether a run on etcd is what the contract says, by the history that etcd itself gave. Reads only the folder."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_agent.rendezvous.etcd.store import KEEP_VERSIONS
from simulation.checks.checkers import Violation

from .etcd_plan import NODES, SERVERS
from .judge import Verdict, all_ended, read_lines
from .plan import FINISH, Plan

Line = dict[str, Any]

NOTICED_S = 1.0
"""What a departure may take to be announced, on top of the lease."""
BUSY_S = 2.0
"""And what the machine may add that runs all of this, and more."""
HARM = ("kill", "freeze", "cut")


@dataclass
class Story:
    """What came of a run, as etcd and the workers tell it."""

    plan: Plan
    facts: list[Line]
    etcd: list[Line]
    words: list[Line] = field(default_factory=list)
    """Announcements in their order; each with `at_s`."""
    idents: dict[str, str] = field(default_factory=dict)
    """Node's identity to its name here."""

    def __post_init__(self) -> None:
        pids = {str(fact["pid"]): fact["node"] for fact in self.facts if fact["what"] == "start"}
        for line in self.etcd:
            if "round" in line:
                self.words.append({**line["round"], "at_s": line["at_s"], "modified": line["modified"]})
            if "name" in line:
                self.idents[line["node"]] = pids[line["name"].rpartition(":")[2]]

    def all(self, what: str, **more: Any) -> list[Line]:
        return [fact for fact in self.facts if fact["what"] == what and more.items() <= fact.items()]

    @property
    def harmed(self) -> dict[str, Line]:
        """Nodes that something befell, by name, with what."""
        return {fact["node"]: fact for fact in self.all("fault") if fact["kind"] in HARM}

    def running(self) -> list[Line]:
        """The rounds that ran, the first word of each."""
        rounds: dict[int, Line] = {}
        for word in self.words:
            if word["phase"] == "running":
                rounds.setdefault(word["number"], word)
        return list(rounds.values())

    def members(self, word: Line) -> set[str]:
        return {self.idents[member[0]] for member in word["members"]}

    def endings(self) -> list[Line]:
        """How rounds ended, as the first word of the next says."""
        found: dict[int, Line] = {}
        for word in self.words:
            if word["ended"]:
                number, kind, because, charged = word["ended"]
                found[number] = {"round": number, "kind": kind, "because": because, "charged": charged}
        return list(found.values())


def need(holds: bool, what: str, but: object) -> None:
    """Raises Violation."""
    if not holds:
        raise Violation(f"{what}; but {but}")


def judge(folder: Path) -> Verdict:
    """Hold the history in this folder to the contract. All jobs of these plans are due to succeed."""
    plan = Plan.from_dict(json.loads((folder / "plan.json").read_text()))
    verdict = Verdict()
    story = Story(plan, read_lines(folder / "facts.jsonl"), read_lines(folder / "etcd.jsonl"))
    try:
        for check in (_faults_were_done, _ended, _spoken, _left, _workers, _undisturbed, _departures, _returned):
            check(story)
        _statuses(story, folder)
    except Violation as violation:
        verdict.wrong.append(str(violation))
    _count(verdict.seen, story)
    return verdict


def _faults_were_done(story: Story) -> None:
    """What the runner could not do says nothing of the product, but must not pass for a success."""
    for fact in story.facts:
        need(fact["what"] != "unread", "the history is read from etcd", fact.get("error"))
        need(fact["what"] != "passed" or not fact["error"], "faults pass", fact)


def _ended(story: Story) -> None:
    all_ended(story.facts)


def _spoken(story: Story) -> None:
    """Each announcement follows the last, once, by whoever led then."""
    leader, versions, closed = 0, 0, None
    for line in story.etcd:
        if line["key"].endswith("/leader"):
            leader = 0 if line["deleted"] else line["created"]
        number = line["key"].rpartition("/round/")[2]
        if not number.isdigit():
            continue
        if line["deleted"]:
            need(closed or int(number) <= versions - KEEP_VERSIONS + 1, "what was said stays", line)
            continue
        word = line["round"]
        need(line["version"] == 1, "an announcement is written once", line)
        need(word["version"] == versions + 1 == int(number), "announcements follow each other", line)
        need(word["epoch"] == leader, f"only the leader speaks, whose epoch is {leader}", line)
        need(not closed or word["outcome"] == closed, "an outcome is final", line)
        versions, closed = versions + 1, word["outcome"]
    numbers = [word["number"] for word in story.words]
    need(numbers == sorted(numbers), "rounds never go back", numbers)
    need(closed == "succeeded", "a job with nodes enough succeeds", f"it {closed or 'was left open'}")


def _left(story: Story) -> None:
    """Only the record, which says how it went."""
    [remains] = story.all("remains")
    need(remains["keys"] == ["job"], "after the job only its record remains", remains["keys"])
    records = [line["outcome"] for line in story.etcd if line["key"] == "job" and not line["deleted"]]
    need(records[-1] == "succeeded", "the record says how the job ended", records)


def _workers(story: Story) -> None:
    """Whoever ran had just the place that was announced, and nobody of an earlier round ran beside it, but on nodes
    that could not know."""
    rounds = {word["number"]: word for word in story.running()}
    for worker in story.all("worker"):
        word = rounds.get(worker["round"])
        need(word is not None, "workers run in announced rounds", worker)
        assert word is not None
        places = {member[0]: member for member in word["members"]}
        place = places.get(worker["ident"])
        need(place is not None, f"only members run in round {worker['round']}", worker)
        assert place is not None
        world = sum(member[4] for member in word["members"])
        right = (place[3] + worker["local_rank"], world) == (worker["rank"], worker["world_size"])
        need(right, f"workers have the ranks that were announced, {place} of {world}", worker)
        stale = [held for held in worker["alive"] if held.split(".")[0] not in story.harmed]
        need(not stale, f"round {worker['round']} begins when those before are gone", stale)
    for word in rounds.values():
        ranks = [rank for member in word["members"] for rank in range(member[3], member[3] + member[4])]
        need(sorted(ranks) == list(range(len(ranks))), "ranks are dense", word)


def _undisturbed(story: Story) -> None:
    """Where only the store suffered, there is one round with all nodes, each worker starts once and finishes."""
    if story.harmed:
        return
    rounds = [story.members(word) for word in story.running()]
    need(rounds == [set(_names(story))], "a store that stands still disturbs nobody", f"{rounds}, {story.endings()}")
    need(not story.endings(), "a store that stands still ends no round", story.endings())
    started = Counter(worker["node"] for worker in story.all("worker"))
    due = {start.name: start.nproc for start in story.plan.starts}
    need(started == due, "each worker starts once", f"{started}, not {due}")


def _names(story: Story) -> list[str]:
    return [start.name for start in story.plan.starts]


def _departures(story: Story) -> None:
    """Rounds end because of nodes that something befell, and of nodes that come; nobody else is lost or charged."""
    pids = {fact["node"]: fact["pid"] for fact in story.all("start")}
    for ending in story.endings():
        need(ending["kind"] != "failure" and not ending["charged"], "no worker failed, so none is charged", ending)
        lost = {name for name, pid in pids.items() if f":{pid} was lost" in ending["because"]}
        need(lost <= story.harmed.keys(), "a node that lives is not lost", ending)
        need(ending["kind"] != "departure" or bool(story.harmed), "a departure has a cause", ending)
    for name, deed in story.harmed.items():
        if not _must_be_lost(story, name, deed):
            continue
        due_s = deed["at_s"] + story.plan.lease_s + NOTICED_S
        over = [word["at_s"] for word in story.words if word["phase"] == "over" and word["at_s"] > deed["at_s"]]
        need(bool(over) and over[0] <= due_s + BUSY_S, f"{name} is lost within lease and 1 s", over[:1])
        after = [story.members(word) for word in story.running() if word["at_s"] > deed["at_s"]]
        need(any(name not in members for members in after), f"the others go on without {name}", after)


def _must_be_lost(story: Story, name: str, deed: Line) -> bool:
    """A member that works, is gone for longer than its lease, and nothing befell the store meanwhile."""
    fault = story.plan.faults[deed["fault"]]
    alone = len(story.plan.faults) == 1 and fault.anchor == "round 1"
    running = [word for word in story.running() if word["at_s"] < deed["at_s"]]
    worked = bool(running) and name in story.members(running[-1])
    outlasts = fault.kind == "kill" or fault.for_s > story.plan.lease_s + NOTICED_S + BUSY_S
    return alone and worked and outlasts


def _returned(story: Story) -> None:
    """A node that was away and could not know comes back into the job, as the same node, unless it was over by then."""
    for name, deed in story.harmed.items():
        if deed["kind"] == "kill":
            continue
        back = next((fact["at_s"] for fact in story.all("thaw", node=name)), None)
        fault = story.plan.faults[deed["fault"]]
        if back is None or fault.anchor == FINISH:
            continue
        last = story.running()[-1]
        need(name in story.members(last), f"{name} is back at the end", story.members(last))
    finished = {story.idents[line["node"]] for line in story.etcd if line.get("state") == "finished"}
    due = {name for name in _names(story) if name not in story.harmed} - _late(story)
    need(due <= finished, "every node that nothing befell finishes", finished)


def _late(story: Story) -> set[str]:
    """Nodes that came when others were finishing already: nobody is stopped for them."""
    first = min((fact["at_s"] for fact in story.all("order")), default=0.0)
    came: dict[str, float] = {}
    for line in story.etcd:
        if "name" in line:
            came.setdefault(story.idents[line["node"]], line["at_s"])
    return {name for name, at_s in came.items() if at_s > first - BUSY_S}


def _statuses(story: Story, folder: Path) -> None:
    for fact in story.all("ended"):
        name, code = fact["node"], fact["code"]
        killed = bool(story.all("fault", node=name, kind="kill"))
        last = (folder / f"stderr-{name}.txt").read_text().splitlines()[-1:]
        if killed:
            need(code == -9, f"{name} was killed", code)
        else:
            need(code == 0 and "exit 0:" in "".join(last), f"{name} ends with the job's success", f"{code}, {last}")
            need(not fact["alive"], f"nothing outlives {name}", fact["alive"])
    need(len(story.all("ended")) == NODES, "every agent ends", story.all("ended"))


def _count(seen: Counter[str], story: Story) -> None:
    for fact in story.facts:
        if fact["what"] == "fault":
            where = "servers" if fact["kind"] in SERVERS else "node"
            seen[f"{where}: {fact['kind']} at {story.plan.faults[fact['fault']].anchor}"] += 1
        elif fact["what"] == "spared" and fact.get("because"):
            seen[f"LEFT OUT: {fact['because']}"] += 1
        elif fact["what"] in ("worker", "start", "servers"):
            seen[{"worker": "workers", "start": "agents", "servers": f"etcd {fact.get('version')}"}[fact["what"]]] += 1
    seen["announcements"] += len(story.words)
    seen["terms of coordinators"] += len({word["epoch"] for word in story.words})
    seen["rounds"] += len(story.running())
    for ending in story.endings():
        seen[f"rounds ended by {ending['kind']}"] += 1
    seen[f"jobs {story.words[-1]['outcome'] if story.words else 'without a word'}"] += 1
