"""Real jobs with real faults, a few seeds of `make chaos`; and its judge, given histories that are not in order."""

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
"""Seeds that are over soon: a freeze and two kills, a goodbye and a crash, a crash and a kill."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SMOKE)
def test_a_seeds_job_ends_as_the_contract_says(seed: int, tmp_path: Path) -> None:
    """Agents, workers and faults are real, and what they leave behind passes the simulator's checkers."""
    verdict = run_seed(seed, keep=tmp_path)
    assert not verdict.wrong
    assert verdict.seen["agents"] >= 2


def test_a_run_that_cannot_be_judged_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What broke the judge is looked at, not lost with the campaign."""

    def fail(folder: Path) -> Verdict:
        raise KeyError("the round")

    monkeypatch.setattr("chaos.runner.Run.play", lambda run: run._bury())
    monkeypatch.setitem(KINDS, "c10d", replace(KINDS["c10d"], judge=fail))
    verdict = run_seed(7, keep=tmp_path)
    assert verdict.wrong[0] == "KeyError: 'the round'"
    assert "python -m tests.campaigns.chaos --store c10d --seed 7" in verdict.wrong[1]
    assert (tmp_path / "seed-7" / "plan.json").exists()


def test_a_seed_is_one_plan_and_survives_being_saved() -> None:
    """The plan of a kept run is the plan that was run, also when seeds have come to mean other plans."""
    for seed in range(50):
        plan = draw(seed)
        assert plan == draw(seed)
        assert plan == Plan.from_dict(json.loads(json.dumps(plan.as_dict())))


def test_the_seeds_of_a_campaign_come_across_every_fault_at_every_moment() -> None:
    """Two hundred seeds hold each kind of fault while nodes gather, while a round runs and while the job finishes."""
    plans = [draw(seed) for seed in range(200)]
    kinds = {(fault.kind, fault.anchor) for plan in plans for fault in plan.faults}
    moments = {"launch", "served", "round 1", "round 2", "finish"}
    assert kinds == {(kind, moment) for kind in ("kill", "freeze", "term", "crash") for moment in moments}
    late = {start.anchor for plan in plans for start in plan.starts}
    assert late == moments
    pairs = [pair for plan in plans for pair in pairwise(plan.faults)]
    assert any(one.anchor == two.anchor and one.after_s == two.after_s for one, two in pairs)


# -- a history told by hand: n1's worker crashes once, both nodes restart and finish ----------------------------------


class Told:
    """What a run leaves in its folder. `judge` writes it there first."""

    def __init__(self) -> None:
        self.ended = crash_of(1)
        self.said = 0
        starts = tuple(Start(f"n{index}", "launch", 0.0, 1, False, 0.0) for index in range(2))
        self.plan = Plan(1, 2, 2, 1, 7.0, 0.6, 0.3, 3.0, 10.0, 1.0, 2.0, 0.0, starts, ())
        self.facts: Lines = []
        self.events: dict[str, Lines] = {"n0": [], "n1": []}
        self.stderr = dict.fromkeys(self.events, "elastic-agent: exit 0: all is well\n")
        self._now = 100.0
        self._tell()

    def later(self, by_s: float = 0.1) -> float:
        self._now += by_s
        return self._now

    def fact(self, what: str, node: str, **more: Any) -> None:
        self.facts.append({"what": what, "at_s": self.later(), "node": node, **more})

    def event(self, node: str, phase: str, number: int, happened: str, **more: Any) -> None:
        told = {"phase": phase, "round": number, "because": "so it is", "happened": happened, "restarts_used": 0}
        self.events[node].append(
            {"what": "event", "at_s": self.later(), "node": node, "members": members(), **told, **more}
        )

    def announced(self, version: int, number: int, phase: str, **more: Any) -> None:
        told = {"because": "so it is", "restarts": 0, "finishing": False, "ended": None, "outcome": None}
        line = {"version": version, "number": number, "phase": phase, "members": members(), **told, **more}
        line["master"], self.said = f"here:{number}", version
        self.events["n0"].append({"what": "announced", "at_s": self.later(), "node": "n0", **line})

    def _tell(self) -> None:
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
        self.announced(self.said + 1, 2, "closed", finishing=True, ended=self.ended, outcome="succeeded", members=[])
        self._leave(2, {"n1": 0, "n0": 0}, "succeeded")

    def _leave(self, number: int, codes: dict[str, int], outcome: str) -> None:
        for name, code in codes.items():
            self.event(name, "ending", number, "RoundSeen")
            self.event(name, "ended", number, "RecordWritten")
            verdict = {"exit_code": code, "because": "so it is", "outcome": outcome}
            self.events[name].append({"what": "concluded", "at_s": self.later(), "node": name, **verdict})
            self.fact("ended", name, code=code, alive=[])

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
        """What is wrong, in a sentence; empty if nothing is."""
        (folder / "plan.json").write_text(json.dumps(self.plan.as_dict()))
        (folder / "facts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in self.facts))
        for name, lines in self.events.items():
            (folder / f"events-{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            (folder / f"stderr-{name}.txt").write_text(self.stderr[name])
        return "; ".join(judge(folder).wrong)

    def the_fact(self, what: str, node: str, **more: Any) -> dict[str, Any]:
        return next(f for f in self.facts if f["what"] == what and f["node"] == node and more.items() <= f.items())

    def the_word(self, version: int) -> dict[str, Any]:
        return next(line for line in self.events["n0"] if line.get("version") == version)


class ToldTwice(Told):
    """n1's worker crashes again, and its one restart is spent."""

    def _end(self) -> None:
        self.stderr = dict.fromkeys(self.events, "elastic-agent: exit 1: so it is\n")
        self._crash(2, version=4)
        self.announced(5, 2, "closed", restarts=1, ended=crash_of(2), outcome="failed", members=[])
        self._leave(2, {"n1": 1, "n0": 1}, "failed")


class ToldArrival(Told):
    """Nobody crashes: round 1 ends for a node that comes, and only then it is known that n0 has finished."""

    def _interrupt(self) -> None:
        self.plan = replace(self.plan, max_nodes=3)
        self.ended = {"round": 1, "kind": "arrival", "because": "n2 came", "charged": ""}
        self.announced(2, 1, "over")
        self.announced(3, 1, "over", finishing=True)
        for name in self.events:
            self.event(name, "stopping", 1, "RoundSeen")
        self.announced(4, 2, "running", finishing=True, ended=self.ended)


class ToldFew(Told):
    """n0 finishes, n1's worker crashes then, and n1 alone is fewer than min_nodes; but n2 is on its way."""

    def _tell(self) -> None:
        self._begin()
        late = Start("n2", "finish", 0.0, 1, False, 0.0)
        self.plan = replace(self.plan, max_nodes=3, starts=(*self.plan.starts, late))
        self.fact("order", "n0", round=1, pid=100, how="exit 0")
        self.event("n0", "finished", 1, "WorkersGone")
        self.announced(2, 1, "running", finishing=True)
        self.events["n2"] = []
        self.stderr = {**self.stderr, "n1": "elastic-agent: exit 1: so it is\n", "n2": ""}
        self.fact("start", "n2", pid=12, nproc=1)
        self.later(5.0)
        self._crash(1, version=3)
        self.events["n0"].pop()  # it has nothing to stop
        self.announced(4, 1, "closed", finishing=True, ended=self.ended, outcome="failed", members=[])
        self._leave(1, {"n1": 1, "n0": 0}, "failed")


def crash_of(number: int) -> dict[str, Any]:
    """How a round ended in which n1's worker crashed."""
    return {"round": number, "kind": "failure", "because": "it failed", "charged": "b"}


def members() -> list[dict[str, Any]]:
    return [
        {"node": ident, "name": f"host:{10 + rank}", "group_rank": rank, "rank_offset": rank, "nproc": 1}
        for rank, ident in enumerate("ab")
    ]


def test_a_history_in_order_passes(tmp_path: Path) -> None:
    """Or the tests below would show nothing."""
    assert Told().judge(tmp_path) == ""


def test_a_job_fails_when_the_restarts_of_the_node_that_failed_are_spent(tmp_path: Path) -> None:
    """They are counted from when each agent learned of its failures; and while there is one left, no job may fail."""
    told = ToldTwice()
    assert told.judge(tmp_path) == ""
    told.plan = replace(told.plan, max_restarts=2)
    assert invariants.SPENT in told.judge(tmp_path)


def test_a_node_that_starts_again_with_no_restart_left_is_found(tmp_path: Path) -> None:
    """Its second life was one too many."""
    told = Told()
    told.plan = replace(told.plan, max_restarts=0)
    assert f"{invariants.COUNTED}; but b was charged" in told.judge(tmp_path)


def test_an_arrival_is_judged_by_what_was_known_when_it_ended_the_round(tmp_path: Path) -> None:
    """Why a round ended is told with the next one, by when others may have finished; before, no arrival may end it."""
    told = ToldArrival()
    assert told.judge(tmp_path) == ""
    told.the_word(1)["finishing"] = True
    assert invariants.UNDISTURBED in told.judge(tmp_path)


def test_a_node_on_its_way_is_not_among_those_that_remain(tmp_path: Path) -> None:
    """The coordinator counts whom it has heard of; one that has come for a while it must have heard of."""
    told = ToldFew()
    assert told.judge(tmp_path) == ""
    told.event("n2", "joining", 0, "StoreOpened", members=[])
    told.events["n2"][-1]["at_s"] = told.the_fact("start", "n2")["at_s"] + 0.1
    assert invariants.SPENT in told.judge(tmp_path)


def _another_port(told: Told) -> None:
    told.the_fact("worker", "n1", round=1)["master"] = "here:77"


def _the_same_port(told: Told) -> None:
    for name in told.events:
        told.the_fact("worker", name, round=2)["master"] = "here:1"


def _wrong_rank(told: Told) -> None:
    told.the_fact("worker", "n1", round=1)["rank"] = 0


def _own_worker_lives(told: Told) -> None:
    told.the_fact("worker", "n1", round=2)["alive"] = ["n1.1.0"]


def _others_worker_lives(told: Told) -> None:
    told.the_fact("worker", "n1", round=2)["alive"] = ["n0.1.0"]


def _too_small(told: Told) -> None:
    told.the_word(1)["members"] = members()[:1]


def _back(told: Told) -> None:
    told.the_word(3)["version"] = 1


def _opened_again(told: Told) -> None:
    told.announced(5, 3, "gathering")
    told.events["n0"][-1]["at_s"] = told.the_word(4)["at_s"] + 0.01


def _charged_another(told: Told) -> None:
    for version in (3, 4):
        told.the_word(version)["ended"]["charged"] = "a"


def _charged_an_arrival(told: Told) -> None:
    told.the_word(3)["ended"] = {**told.the_word(3)["ended"], "kind": "departure"}


def _forgot_a_charge(told: Told) -> None:
    told.the_fact("worker", "n1", round=2)["restarts"] = 0


def _stopped_for_nothing(told: Told) -> None:
    told.event("n0", "stopping", 2, "RoundSeen")
    told.events["n0"][-1]["at_s"] = told.the_fact("order", "n0")["at_s"] - 1.0


def _did_not_finish(told: Told) -> None:
    told.facts.remove(told.the_fact("order", "n1", round=2))


def _never_said_that_it_finished(told: Told) -> None:
    _did_not_finish(told)
    told.events["n1"] = [line for line in told.events["n1"] if line.get("phase") != "finished"]


def _another_outcome(told: Told) -> None:
    told.announced(5, 2, "closed", outcome="failed", members=[])
    told.events["n0"][-1]["at_s"] = told.the_word(4)["at_s"] + 0.01


def _another_status(told: Told) -> None:
    told.the_fact("ended", "n1")["code"] = 1


def _another_last_line(told: Told) -> None:
    told.stderr["n1"] = "elastic-agent: exit 76: nobody came\n"


def _undeserved_status(told: Told) -> None:
    told.the_fact("ended", "n1")["code"] = told.events["n1"][-1]["exit_code"] = 143
    told.stderr["n1"] = "elastic-agent: exit 143: SIGTERM\n"


def _worker_outlives(told: Told) -> None:
    told.the_fact("ended", "n1")["alive"] = ["n1.2.0"]


def _hung(told: Told) -> None:
    told.facts.append({"what": "hang", "at_s": told.later(60.0), "nodes": ["n1"]})


def _orphan(told: Told) -> None:
    told.facts.append({"what": "orphan", "at_s": told.later(), "pid": 5, "command": "sleep 1000"})


WRONG: list[tuple[Callable[[Told], None], str]] = [
    (_another_port, invariants.AGREED),
    (_the_same_port, "every round has a fresh master port"),
    (_wrong_rank, invariants.DENSE),
    (_own_worker_lives, invariants.EMPTY),
    (_others_worker_lives, invariants.FENCED),
    (_too_small, invariants.SIZED),
    (_back, invariants.FORWARD),
    (_opened_again, invariants.FINAL),
    (_charged_another, invariants.CHARGED),
    (_charged_an_arrival, invariants.CHARGED),
    (_forgot_a_charge, invariants.COUNTED),
    (_stopped_for_nothing, invariants.LISTED),
    (_another_outcome, invariants.FINAL),
    (_did_not_finish, invariants.TRUTHFUL),
    (_never_said_that_it_finished, invariants.SUCCESS),
    (_another_status, invariants.CODED),
    (_another_last_line, invariants.CODED),
    (_undeserved_status, invariants.KEPT),
    (_worker_outlives, invariants.LEFT_NO_WORKER),
    (_hung, invariants.ENDING),
    (_orphan, "nothing outlives its agent"),
]


@pytest.mark.parametrize(("doctor", "sentence"), WRONG, ids=[doctor.__name__.strip("_") for doctor, _ in WRONG])
def test_the_judge_finds_what_is_wrong(doctor: Callable[[Told], None], sentence: str, tmp_path: Path) -> None:
    """Each thing that may never happen is put into a history in order, and the judge names it."""
    told = Told()
    doctor(told)
    assert sentence in told.judge(tmp_path)


def test_a_job_that_had_to_succeed_and_did_not_is_found(tmp_path: Path) -> None:
    """Nodes and restarts enough, all faults long past: any other outcome breaks the contract, however consistent."""
    told = Told()
    told.the_word(4)["outcome"] = "abandoned"
    assert "succeeds; but it abandoned" in told.judge(tmp_path)


def test_a_crash_must_end_a_job_without_restarts_unless_a_node_is_still_to_come(tmp_path: Path) -> None:
    """For that node the round may have ended already, and a worker that is being stopped may crash."""
    told = ToldArrival()
    told.plan = replace(told.plan, max_restarts=0)
    ordered = next(index for index, fact in enumerate(told.facts) if fact["what"] == "worker" and fact["round"] == 2)
    order = {"what": "order", "at_s": told.the_word(2)["at_s"] + 0.01, "node": "n1", "round": 1, "pid": 101}
    told.facts.insert(ordered, {**order, "how": "exit 3"})
    assert "without restarts a failure ends the job at once; but it succeeded" in told.judge(tmp_path)
    told.plan = replace(told.plan, starts=(*told.plan.starts, Start("n2", "launch", 0.0, 1, False, 0.0)))
    assert told.judge(tmp_path) == ""


def test_a_kept_run_is_judged_again_from_its_folder(tmp_path: Path) -> None:
    """What was kept of a failing run is all that the judge needs."""
    told = Told()
    assert (told.judge(tmp_path), main(["--judge", str(tmp_path)])) == ("", 0)
    _wrong_rank(told)
    told.judge(tmp_path)
    assert main(["--judge", str(tmp_path)]) == 1
