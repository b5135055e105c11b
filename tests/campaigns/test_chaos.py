"""Real jobs with real faults, a few seeds of `make chaos`; and its judge, given histories that break a rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from campaigns.chaos.campaign import KINDS, main, run_seed
from campaigns.chaos.judge import Verdict, judge
from campaigns.chaos.plan import Plan, Start, draw
from simulation.checks import invariants

Lines = list[dict[str, Any]]

SMOKE = (3080, 3022, 3001)
"""Seeds with short runs: a freeze and two kills, a SIGTERM and a crash, a crash and a kill."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SMOKE)
def test_a_job_with_faults_ends_as_the_contract_says(seed: int, tmp_path: Path) -> None:
    """Agents, workers and faults are real, and the recorded history passes the simulator's checkers."""
    verdict = run_seed(seed, keep=tmp_path)
    assert not verdict.wrong
    assert verdict.seen["agents"] >= 2


def test_a_run_that_cannot_be_judged_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that makes the judge fail is reported and kept."""

    def fail(folder: Path) -> Verdict:
        raise KeyError("the round")

    monkeypatch.setattr("campaigns.chaos.runner.Run.play", lambda run: run._clean_up())
    monkeypatch.setitem(KINDS, "c10d", replace(KINDS["c10d"], judge=fail))
    verdict = run_seed(7, keep=tmp_path)
    assert verdict.wrong[0] == "KeyError: 'the round'"
    assert "python -m tests.campaigns.chaos --store c10d --seed 7" in verdict.wrong[1]
    assert (tmp_path / "seed-7" / "plan.json").exists()


def test_a_seed_is_one_plan_that_can_be_saved() -> None:
    """A kept run has the plan that was run, also after a change of what seeds mean."""
    for seed in range(50):
        plan = draw(seed)
        assert plan == draw(seed)
        assert plan == Plan.from_dict(json.loads(json.dumps(plan.as_dict())))


def test_the_seeds_of_a_campaign_have_every_fault_at_every_moment() -> None:
    """Two hundred seeds have each kind of fault while nodes gather, while a round runs and while the job finishes."""
    plans = [draw(seed) for seed in range(200)]
    kinds = {(fault.kind, fault.anchor) for plan in plans for fault in plan.faults}
    moments = {"launch", "served", "round 1", "round 2", "finish"}
    assert kinds == {(kind, moment) for kind in ("kill", "freeze", "term", "crash") for moment in moments}
    late = {start.anchor for plan in plans for start in plan.starts}
    assert late == moments
    pairs = [pair for plan in plans for pair in pairwise(plan.faults)]
    assert any(one.anchor == two.anchor and one.after_s == two.after_s for one, two in pairs)


# -- a history made by hand: n1's worker crashes once, both nodes restart and finish -----------------------------------


class MadeHistory:
    """The history of a run, which `judge` writes into a folder and then judges."""

    def __init__(self) -> None:
        self.ended = crash_of(1)
        self.announced_version = 0
        starts = tuple(Start(f"n{index}", "launch", 0.0, 1, False, 0.0) for index in range(2))
        self.plan = Plan(1, 2, 2, 1, 7.0, 0.6, 0.3, 3.0, 10.0, 1.0, 2.0, 0.0, starts, ())
        self.facts: Lines = []
        self.events: dict[str, Lines] = {"n0": [], "n1": []}
        self.stderr = dict.fromkeys(self.events, "elastic-agent: exit 0: all is well\n")
        self._now = 100.0
        self._make()

    def later(self, by_s: float = 0.1) -> float:
        self._now += by_s
        return self._now

    def fact(self, what: str, node: str, **more: Any) -> None:
        self.facts.append({"what": what, "at_s": self.later(), "node": node, **more})

    def event(self, node: str, phase: str, number: int, happened: str, **more: Any) -> None:
        event = {"phase": phase, "round": number, "because": "made up", "happened": happened, "restarts_used": 0}
        self.events[node].append(
            {"what": "event", "at_s": self.later(), "node": node, "members": members(), **event, **more}
        )

    def announced(self, version: int, number: int, phase: str, **more: Any) -> None:
        rest = {"because": "made up", "restarts": 0, "finishing": False, "ended": None, "outcome": None}
        line = {"version": version, "number": number, "phase": phase, "members": members(), **rest, **more}
        line["master"], self.announced_version = f"here:{number}", version
        self.events["n0"].append({"what": "announced", "at_s": self.later(), "node": "n0", **line})

    def _make(self) -> None:
        self._begin()
        self._interrupt()
        for name in self.events:
            self.event(name, "joining", 1, "WorkersGone")
        self._round(2)
        self.later(5.0)
        self._end()

    def _begin(self) -> None:
        for index, name in enumerate(self.events):
            self.fact("start", name, pid=10 + index, nproc=1)
            self.event(name, "joining", 0, "StoreOpened", members=[])
        self.announced(1, 1, "running")
        self._round(1)
        self.later(5.0)

    def _interrupt(self) -> None:
        self._crash(1, version=2)
        self.announced(3, 2, "running", restarts=1, ended=self.ended)

    def _end(self) -> None:
        for name in self.events:
            self.fact("order", name, round=2, pid=200, how="exit 0")
            self.event(name, "finished", 2, "WorkersGone")
        self.announced(
            self.announced_version + 1, 2, "closed", finishing=True, ended=self.ended, outcome="succeeded", members=[]
        )
        self._leave(2, {"n1": 0, "n0": 0}, "succeeded")

    def _leave(self, number: int, codes: dict[str, int], outcome: str) -> None:
        for name, code in codes.items():
            self.event(name, "ending", number, "RoundSeen")
            self.event(name, "ended", number, "RecordWritten")
            self._account(name)
            verdict = {"exit_code": code, "because": "made up", "outcome": outcome}
            self.events[name].append({"what": "concluded", "at_s": self.later(), "node": name, **verdict})
            self.fact("ended", name, code=code, alive=[])

    def _account(self, name: str) -> None:
        """As if its worker had lost no time."""
        at_s, first_s = self.later(), self.events[name][0]["at_s"]
        buckets = {"useful steps": at_s - first_s, "saving": 0.0, "not measured": 0.0}
        account = {"workers": 1, "wall_s": at_s - first_s, "buckets": buckets, "lost": []}
        self.events[name].append({"what": "goodput", "at_s": at_s, "node": name, **account})

    def _crash(self, number: int, version: int) -> None:
        self.fact("order", "n1", round=number, pid=100 * number + 1, how="exit 3")
        self.event("n1", "stopping", number, "WorkerExited", failure="rank 1")
        self.announced(version, number, "over")
        self.event("n0", "stopping", number, "RoundSeen")

    def _round(self, number: int) -> None:
        for name in self.events:
            self.event(name, "working", number, "RoundSeen")
        for rank, name in enumerate(self.events):
            self.fact(
                "worker", name, round=number, rank=rank, local_rank=0, world_size=2, pid=100 * number + rank,
                restarts=int(number == 2 and "ab"[rank] == self.ended["charged"]), master=f"here:{number}",
                ident="ab"[rank], alive=[], started_s=self.later(),
            )  # fmt: skip

    def judge(self, folder: Path) -> str:
        """What is wrong, in one line; empty if nothing is."""
        (folder / "plan.json").write_text(json.dumps(self.plan.as_dict()))
        (folder / "facts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in self.facts))
        for name, lines in self.events.items():
            (folder / f"events-{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            (folder / f"stderr-{name}.txt").write_text(self.stderr[name])
        return "; ".join(judge(folder).wrong)

    def the_fact(self, what: str, node: str, **more: Any) -> dict[str, Any]:
        return next(f for f in self.facts if f["what"] == what and f["node"] == node and more.items() <= f.items())

    def announcement(self, version: int) -> dict[str, Any]:
        return next(line for line in self.events["n0"] if line.get("version") == version)


class TwoCrashes(MadeHistory):
    """n1's worker crashes twice, and its one restart is spent."""

    def _end(self) -> None:
        self.stderr = dict.fromkeys(self.events, "elastic-agent: exit 1: made up\n")
        self._crash(2, version=4)
        self.announced(5, 2, "closed", restarts=1, ended=crash_of(2), outcome="failed", members=[])
        self._leave(2, {"n1": 1, "n0": 1}, "failed")


class Arrival(MadeHistory):
    """No worker crashes: round 1 ends for a node that arrives, and only then n0's record says that it has finished."""

    def _interrupt(self) -> None:
        self.plan = replace(self.plan, max_nodes=3)
        self.ended = {"round": 1, "kind": "arrival", "because": "n2 came", "charged": ""}
        self.announced(2, 1, "over")
        self.announced(3, 1, "over", finishing=True)
        for name in self.events:
            self.event(name, "stopping", 1, "RoundSeen")
        self.announced(4, 2, "running", finishing=True, ended=self.ended)


class TooFewLeft(MadeHistory):
    """n0 finishes, then n1's worker crashes, and n1 alone is fewer than min_nodes; but n2 is about to join."""

    def _make(self) -> None:
        self._begin()
        late = Start("n2", "finish", 0.0, 1, False, 0.0)
        self.plan = replace(self.plan, max_nodes=3, starts=(*self.plan.starts, late))
        self.fact("order", "n0", round=1, pid=100, how="exit 0")
        self.event("n0", "finished", 1, "WorkersGone")
        self.announced(2, 1, "running", finishing=True)
        self.events["n2"] = []
        self.stderr = {**self.stderr, "n1": "elastic-agent: exit 1: made up\n", "n2": ""}
        self.fact("start", "n2", pid=12, nproc=1)
        self.later(5.0)
        self._crash(1, version=3)
        self.events["n0"].pop()  # it has no workers to stop
        self.announced(4, 1, "closed", finishing=True, ended=self.ended, outcome="failed", members=[])
        self._leave(1, {"n1": 1, "n0": 0}, "failed")


def crash_of(number: int) -> dict[str, Any]:
    """The end of a round in which n1's worker crashed."""
    return {"round": number, "kind": "failure", "because": "it failed", "charged": "b"}


def members() -> list[dict[str, Any]]:
    return [
        {"node": ident, "name": f"host:{10 + rank}", "group_rank": rank, "rank_offset": rank, "nproc": 1}
        for rank, ident in enumerate("ab")
    ]


def test_a_history_that_breaks_no_rule_passes(tmp_path: Path) -> None:
    """Otherwise the tests below would show nothing."""
    assert MadeHistory().judge(tmp_path) == ""


def test_a_job_fails_when_the_restarts_of_the_node_that_failed_are_spent(tmp_path: Path) -> None:
    """Restarts are counted by each agent's own failures; while one is left, no job may fail."""
    history = TwoCrashes()
    assert history.judge(tmp_path) == ""
    history.plan = replace(history.plan, max_restarts=2)
    assert invariants.SPENT in history.judge(tmp_path)


def test_a_restart_without_a_restart_left_is_found(tmp_path: Path) -> None:
    """Node b was charged beyond its budget."""
    history = MadeHistory()
    history.plan = replace(history.plan, max_restarts=0)
    assert f"{invariants.COUNTED}; but b was charged" in history.judge(tmp_path)


def test_an_arrival_is_judged_by_the_records_when_it_ended_the_round(tmp_path: Path) -> None:
    """An end is announced with the next round, when other nodes may have finished; only nodes that had finished when
    the round ended count."""
    history = Arrival()
    assert history.judge(tmp_path) == ""
    history.announcement(1)["finishing"] = True
    assert invariants.UNDISTURBED in history.judge(tmp_path)


def test_a_node_that_is_about_to_join_does_not_count_as_remaining(tmp_path: Path) -> None:
    """The coordinator counts the nodes whose records it has read; a record of some age it must have read."""
    history = TooFewLeft()
    assert history.judge(tmp_path) == ""
    history.event("n2", "joining", 0, "StoreOpened", members=[])
    history.events["n2"][-1]["at_s"] = history.the_fact("start", "n2")["at_s"] + 0.1
    assert invariants.SPENT in history.judge(tmp_path)


def _another_port(history: MadeHistory) -> None:
    history.the_fact("worker", "n1", round=1)["master"] = "here:77"


def _the_same_port(history: MadeHistory) -> None:
    for name in history.events:
        history.the_fact("worker", name, round=2)["master"] = "here:1"


def _wrong_rank(history: MadeHistory) -> None:
    history.the_fact("worker", "n1", round=1)["rank"] = 0


def _own_worker_lives(history: MadeHistory) -> None:
    history.the_fact("worker", "n1", round=2)["alive"] = ["n1.1.0"]


def _others_worker_lives(history: MadeHistory) -> None:
    history.the_fact("worker", "n1", round=2)["alive"] = ["n0.1.0"]


def _too_small(history: MadeHistory) -> None:
    history.announcement(1)["members"] = members()[:1]


def _version_goes_back(history: MadeHistory) -> None:
    history.announcement(3)["version"] = 1


def _opened_again(history: MadeHistory) -> None:
    history.announced(5, 3, "gathering")
    history.events["n0"][-1]["at_s"] = history.announcement(4)["at_s"] + 0.01


def _charged_another(history: MadeHistory) -> None:
    for version in (3, 4):
        history.announcement(version)["ended"]["charged"] = "a"


def _charged_an_arrival(history: MadeHistory) -> None:
    history.announcement(3)["ended"] = {**history.announcement(3)["ended"], "kind": "departure"}


def _forgot_a_charge(history: MadeHistory) -> None:
    history.the_fact("worker", "n1", round=2)["restarts"] = 0


def _stopped_for_nothing(history: MadeHistory) -> None:
    history.event("n0", "stopping", 2, "RoundSeen")
    history.events["n0"][-1]["at_s"] = history.the_fact("order", "n0")["at_s"] - 1.0


def _did_not_finish(history: MadeHistory) -> None:
    history.facts.remove(history.the_fact("order", "n1", round=2))


def _never_published_finished(history: MadeHistory) -> None:
    _did_not_finish(history)
    history.events["n1"] = [line for line in history.events["n1"] if line.get("phase") != "finished"]


def _another_outcome(history: MadeHistory) -> None:
    history.announced(5, 2, "closed", outcome="failed", members=[])
    history.events["n0"][-1]["at_s"] = history.announcement(4)["at_s"] + 0.01


def _another_status(history: MadeHistory) -> None:
    history.the_fact("ended", "n1")["code"] = 1


def _another_last_line(history: MadeHistory) -> None:
    history.stderr["n1"] = "elastic-agent: exit 76: too few nodes\n"


def _undeserved_status(history: MadeHistory) -> None:
    history.the_fact("ended", "n1")["code"] = history.events["n1"][-1]["exit_code"] = 143
    history.stderr["n1"] = "elastic-agent: exit 143: SIGTERM\n"


def _worker_outlives(history: MadeHistory) -> None:
    history.the_fact("ended", "n1")["alive"] = ["n1.2.0"]


def _hung(history: MadeHistory) -> None:
    history.facts.append({"what": "hang", "at_s": history.later(60.0), "nodes": ["n1"]})


def _orphan(history: MadeHistory) -> None:
    history.facts.append({"what": "orphan", "at_s": history.later(), "pid": 5, "command": "sleep 1000"})


WRONG: list[tuple[Callable[[MadeHistory], None], str]] = [
    (_another_port, invariants.AGREED),
    (_the_same_port, "every round has a fresh master port"),
    (_wrong_rank, invariants.DENSE),
    (_own_worker_lives, invariants.EMPTY),
    (_others_worker_lives, invariants.FENCED),
    (_too_small, invariants.SIZED),
    (_version_goes_back, invariants.FORWARD),
    (_opened_again, invariants.FINAL),
    (_charged_another, invariants.CHARGED),
    (_charged_an_arrival, invariants.CHARGED),
    (_forgot_a_charge, invariants.COUNTED),
    (_stopped_for_nothing, invariants.LISTED),
    (_another_outcome, invariants.FINAL),
    (_did_not_finish, invariants.TRUTHFUL),
    (_never_published_finished, invariants.SUCCESS),
    (_another_status, invariants.CODED),
    (_another_last_line, invariants.CODED),
    (_undeserved_status, invariants.KEPT),
    (_worker_outlives, invariants.LEFT_NO_WORKER),
    (_hung, invariants.ENDING),
    (_orphan, "nothing outlives its agent"),
]


@pytest.mark.parametrize(("change", "sentence"), WRONG, ids=[change.__name__.strip("_") for change, _ in WRONG])
def test_the_judge_finds_what_is_wrong(change: Callable[[MadeHistory], None], sentence: str, tmp_path: Path) -> None:
    """Each change of the history breaks one rule, and the judge names it."""
    history = MadeHistory()
    change(history)
    assert sentence in history.judge(tmp_path)


def test_a_job_that_should_have_succeeded_is_found(tmp_path: Path) -> None:
    """Enough nodes and restarts, all faults long over: any other outcome breaks the contract, even a consistent one."""
    history = MadeHistory()
    history.announcement(4)["outcome"] = "abandoned"
    assert "succeeds; but it abandoned" in history.judge(tmp_path)


def test_a_crash_must_end_a_job_without_restarts_unless_a_node_may_still_arrive(tmp_path: Path) -> None:
    """Its arrival may have ended the round before, and a worker that is being stopped may crash."""
    history = Arrival()
    history.plan = replace(history.plan, max_restarts=0)
    ordered = next(index for index, fact in enumerate(history.facts) if fact["what"] == "worker" and fact["round"] == 2)
    order = {"what": "order", "at_s": history.announcement(2)["at_s"] + 0.01, "node": "n1", "round": 1, "pid": 101}
    history.facts.insert(ordered, {**order, "how": "exit 3"})
    assert "without restarts a failure ends the job at once; but it succeeded" in history.judge(tmp_path)
    history.plan = replace(history.plan, starts=(*history.plan.starts, Start("n2", "launch", 0.0, 1, False, 0.0)))
    assert history.judge(tmp_path) == ""


def test_a_kept_run_is_judged_again_from_its_folder(tmp_path: Path) -> None:
    """The folder of a failing run has all that the judge needs."""
    history = MadeHistory()
    assert (history.judge(tmp_path), main(["--judge", str(tmp_path)])) == ("", 0)
    _wrong_rank(history)
    history.judge(tmp_path)
    assert main(["--judge", str(tmp_path)]) == 1
