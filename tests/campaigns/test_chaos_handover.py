"""The judge of `make chaos`, given histories of a job whose host was killed, and whose store another node hosts."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from campaigns.chaos import handover
from campaigns.chaos.handover import GOES_ON, Handover
from campaigns.chaos.judge import SETTLED_S
from campaigns.chaos.plan import HOSTING, Plan, Start, draw
from simulation.checks import invariants
from simulation.checks.checkers import Violation

STARTS = tuple(Start(name, "launch", 0.0, 1, False, 0.0) for name in ("n0", "n1", "n2"))
PLAN = Plan(1, 1, 3, 1, 7.0, 0.6, 0.3, 8.0, 10.0, 1.0, 9.0, 0.0, STARTS, (), listed=True)
LAST = dict.fromkeys(("n0", "n1", "n2"), "elastic-agent: exit 0: all is well")


def worker(node: str, number: int, rank: int, size: int, at_s: float, **more: Any) -> dict[str, Any]:
    shape = {"round": number, "rank": rank, "local_rank": 0, "world_size": size, "master": f"here:{number}"}
    ident = {"ident": f"id-{node}", "pid": 10 * number + rank, "alive": [], "restarts": 0, "started_s": at_s}
    return {"what": "worker", "at_s": at_s, "node": node, **shape, **ident, **more}


def history() -> Handover:
    """n0 hosts and is killed, n1 hosts behind it, and the job succeeds."""
    facts = [
        *({"what": "start", "at_s": 0.0, "node": name} for name in LAST),
        *(worker(name, 1, rank, 3, 2.0) for rank, name in enumerate(LAST)),
        {"what": "fault", "at_s": 4.0, "node": "n0", "kind": "kill", "hosts": True},
        *({"what": "exited", "at_s": 4.5, "node": name, "pid": 10 + rank} for rank, name in enumerate(LAST)),
        {"what": "ended", "at_s": 4.1, "node": "n0", "code": -9, "alive": []},
        *(worker(name, 2, rank, 2, 5.0) for rank, name in enumerate(("n1", "n2"))),
        *({"what": "order", "at_s": 9.0, "node": name, "round": 2, "how": "exit 0"} for name in ("n1", "n2")),
        *({"what": "ended", "at_s": 10.0, "node": name, "code": 0, "alive": []} for name in ("n1", "n2")),
    ]
    ended = {"round": 1, "kind": "departure", "because": "n0 was lost", "charged": ""}
    announced = {"what": "announced", "at_s": 5.0, "number": 2, "ended": ended, "outcome": "succeeded"}
    done = {"what": "concluded", "at_s": 10.0, "exit_code": 0}
    return Handover(PLAN, facts, {"n0": [], "n1": [announced, done], "n2": [done.copy()]})


def fact(run: Handover, what: str, node: str, number: int | None = None) -> dict[str, Any]:
    return next(
        each
        for each in run.facts
        if (each["what"], each["node"]) == (what, node) and number in (None, each.get("round"))
    )


def test_a_job_that_went_on_behind_its_host_passes() -> None:
    run = history()
    assert handover.was_handed_over(run.facts, run.lines)
    assert handover.must_go_on(run, SETTLED_S)
    assert handover.succeeded(run)
    handover.check(run, LAST)


def _two_worlds(run: Handover) -> None:
    fact(run, "worker", "n1", 2)["alive"] = ["n2.1.0"]


def _own_worker_lives(run: Handover) -> None:
    fact(run, "worker", "n1", 2)["alive"] = ["n1.1.0"]


def _workers_of_the_dead_host_live(run: Handover) -> None:
    fact(run, "worker", "n1", 2)["alive"] = ["n0.1.0"]


def _the_same_number_twice(run: Handover) -> None:
    for node in ("n1", "n2"):
        fact(run, "worker", node, 2)["round"] = 1
    run.facts = [each for each in run.facts if each["what"] != "exited" or each["node"] == "n0"]


def _begins_again(run: Handover) -> None:
    """Behind the end of the workers, so that no two worlds are seen."""
    for node in ("n1", "n2"):
        fact(run, "worker", node, 2)["round"] = 1


def _rank_twice(run: Handover) -> None:
    fact(run, "worker", "n2", 2)["rank"] = 0


def _charged(run: Handover) -> None:
    run.lines["n1"][0]["ended"] |= {"kind": "failure", "charged": "id-n2"}


def _charged_an_echo(run: Handover) -> None:
    _charged(run)
    run.facts.append({"what": "order", "at_s": 4.2, "node": "n2", "round": 1, "how": "raise lost my peer"})
    fact(run, "worker", "n2", 2)["restarts"] = 1


def _forgot_a_charge(run: Handover) -> None:
    _charged(run)
    run.facts.append({"what": "order", "at_s": 3.9, "node": "n2", "round": 1, "how": "exit 3"})


def _gave_up(run: Handover) -> None:
    fact(run, "ended", "n2")["code"] = 80
    run.lines["n2"][0]["exit_code"] = 80


def _left_unasked(run: Handover) -> None:
    fact(run, "ended", "n2")["code"] = 143
    run.lines["n2"][0]["exit_code"] = 143


WRONG: list[tuple[Callable[[Handover], None], str]] = [
    (_two_worlds, invariants.ONE_WORLD),
    (_own_worker_lives, invariants.EMPTY),
    (_workers_of_the_dead_host_live, invariants.ONE_WORLD),
    (_the_same_number_twice, invariants.ONE_WORLD),
    (_begins_again, invariants.FORWARD),
    (_rank_twice, invariants.DENSE),
    (_charged, invariants.CHARGED),
    (_charged_an_echo, invariants.CHARGED),
    (_forgot_a_charge, invariants.COUNTED),
    (_gave_up, GOES_ON),
    (_left_unasked, invariants.CODED),
]


@pytest.mark.parametrize(("change", "sentence"), WRONG, ids=[change.__name__.strip("_") for change, _ in WRONG])
def test_the_judge_finds_what_is_wrong_behind_a_host(change: Callable[[Handover], None], sentence: str) -> None:
    """Each change breaks one rule, and the judge names it."""
    run = deepcopy(history())
    change(run)
    code = fact(run, "ended", "n2")["code"]
    with pytest.raises(Violation) as found:
        handover.check(run, {**LAST, "n2": f"elastic-agent: exit {code}: it is so"})
    assert sentence in str(found.value)


def test_a_host_that_dies_before_a_round_has_begun_may_end_its_job() -> None:
    """It has no successor, and the contract says so."""
    run = history()
    fact(run, "fault", "n0")["at_s"] = 1.9
    _gave_up(run)
    handover.check(run, {**LAST, "n2": "elastic-agent: exit 80: the store did not answer"})
    assert not handover.must_go_on(run, SETTLED_S)


def test_half_of_the_seeds_hit_whoever_hosts_the_store() -> None:
    """With every kind of fault, where all nodes are listed and where one is; of the others its agent is spared."""
    plans = [draw(seed) for seed in range(200)]
    followed = [plan for plan in plans if plan.followed]
    assert 70 < len(followed) < 130
    for some in ([plan for plan in followed if plan.listed], [plan for plan in followed if plan.one_endpoint]):
        assert len(some) > 25
        kinds = {fault.kind for plan in some for fault in plan.faults if fault.node == HOSTING}
        assert kinds == {"kill", "term", "freeze"}
    assert all(fault.for_s < plan.lease_s for plan in followed for fault in plan.faults if fault.kind == "freeze")
    spared = [fault for plan in plans if not plan.followed for fault in plan.faults if fault.kind != "crash"]
    assert all(fault.node not in (HOSTING, "n0") for fault in spared)
