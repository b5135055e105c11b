"""The judge of `make chaos`, given histories that break a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from campaigns.chaos.campaign import main
from campaigns.chaos.made_history import Arrival, MadeHistory, TooFewLeft, TwoCrashes, members
from campaigns.chaos.plan import Start
from simulation.checks import invariants


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
