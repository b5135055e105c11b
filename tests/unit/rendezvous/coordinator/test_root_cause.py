"""The cause among the exits of a round, by what each shows by itself and in the order seen."""

from __future__ import annotations

import pytest

from elastic_agent.rendezvous.coordinator import root_cause
from elastic_agent.rendezvous.failures import Role, Sign
from support.builders import worker_exit

OWN, PEER, TIMEOUT, UNCLEAR, STOPPED, STANDING, LEFT, QUIET, HOST, CUT_OFF = (
    Sign.OWN,
    Sign.PEER,
    Sign.TIMEOUT,
    Sign.UNCLEAR,
    Sign.STOPPED,
    Sign.STANDING,
    Sign.LEFT,
    Sign.QUIET,
    Sign.HOST,
    Sign.CUT_OFF,
)


@pytest.mark.parametrize(
    ("seen", "cause", "role"),
    [
        # A failure of its own is the cause, wherever in the order it was seen.
        ([(1, OWN), (0, PEER), (2, PEER)], 1, Role.CAUSE),
        ([(0, PEER), (2, PEER), (1, OWN), (3, STOPPED)], 1, Role.CAUSE),
        ([(0, PEER), (1, HOST), (2, STOPPED)], 1, Role.CAUSE),
        # Two: the first, and no more than likely; but a failure of the host is no echo.
        ([(2, OWN), (1, OWN)], 2, Role.UNDECIDED),
        ([(2, HOST), (3, HOST), (1, OWN)], 2, Role.CAUSE),
        # An unclear one was seen before it: likely, no more.
        ([(0, UNCLEAR), (1, OWN)], 1, Role.UNDECIDED),
        # An unclear one, among echoes.
        ([(0, PEER), (3, UNCLEAR), (2, PEER)], 3, Role.CAUSE),
        # All are unclear: the first is named, and no more.
        ([(3, UNCLEAR), (0, UNCLEAR), (1, STOPPED)], 3, Role.UNDECIDED),
        ([(0, UNCLEAR)], 0, Role.CAUSE),
        # Only echoes: one that was suspended, exited 0 too early, or still ran when the others had failed.
        ([(0, TIMEOUT), (1, TIMEOUT), (2, STANDING), (3, STOPPED)], 2, Role.CAUSE),
        ([(0, TIMEOUT), (1, STANDING), (2, STANDING)], 1, Role.UNDECIDED),
        ([(3, LEFT), (0, PEER), (1, PEER), (2, PEER)], 3, Role.CAUSE),
        ([(3, LEFT), (2, LEFT), (0, PEER)], 3, Role.UNDECIDED),
        ([(0, TIMEOUT), (1, PEER), (2, TIMEOUT), (3, STOPPED)], 3, Role.CAUSE),
        ([(0, TIMEOUT), (2, STOPPED), (3, STOPPED)], 2, Role.UNDECIDED),
        ([(0, PEER), (1, PEER)], 0, Role.UNDECIDED),
        # One that exited 0 may be seen after its peers; where another one still ran, that may be the cause.
        ([(0, PEER), (3, LEFT)], 3, Role.CAUSE),
        ([(2, PEER), (3, LEFT), (1, STOPPED)], 3, Role.UNDECIDED),
        # One that exited with a code and no error: certain if it is the only one; an error counts for more.
        ([(0, PEER), (1, QUIET)], 1, Role.CAUSE),
        ([(0, QUIET), (1, QUIET)], 0, Role.UNDECIDED),
        ([(0, QUIET), (1, OWN)], 1, Role.UNDECIDED),
        # Workers whose node was cut off are what the others have lost, unless one failed on its own.
        ([(0, PEER), (1, CUT_OFF), (2, TIMEOUT)], 1, Role.CAUSE),
        ([(1, CUT_OFF), (0, QUIET)], 0, Role.CAUSE),
        ([(1, CUT_OFF), (0, OWN)], 0, Role.CAUSE),
    ],
)
def test_the_cause_among_many(seen: list[tuple[int, Sign]], cause: int, role: Role) -> None:
    """Each clause, by the sign of each worker's exit and the order in which they were seen."""
    judgement = root_cause.judge([worker_exit(*each, order=order) for order, each in enumerate(seen)])
    assert judgement.cause is not None
    assert (judgement.cause.rank, judgement.role) == (cause, role)
    assert judgement.because


def test_a_rank_that_errors_name_is_the_cause() -> None:
    """The monitored barrier names rank 1; that rank 3 was stopped too is no evidence."""
    exits = [
        worker_exit(0, TIMEOUT, suspects=(1,)),
        worker_exit(2, PEER),
        worker_exit(3, STOPPED),
        worker_exit(1, STOPPED),
    ]
    judgement = root_cause.judge(exits)
    assert judgement.cause is exits[3]
    assert judgement.role is Role.CAUSE
    assert (
        root_cause.judge(
            [worker_exit(0, TIMEOUT, suspects=(1, 3)), worker_exit(3, STOPPED), worker_exit(1, STOPPED)]
        ).role
        is Role.UNDECIDED
    )


@pytest.mark.parametrize(
    ("ways", "cause"),
    [
        # Three lost their peer and raised errors of their own; they may be seen before it.
        (["step 7 failed on 0", "step 7 failed on 1", "boom", "step 8 failed on 3"], 2),
        # Two of four are not most: the first.
        (["step failed", "step failed", "boom", "bang"], 0),
        # All failed alike: the first.
        (["boom", "boom", "boom"], 0),
        (["boom", "bang"], 0),
    ],
)
def test_the_odd_one_among_many_that_failed_alike_is_likely_the_cause(ways: list[str], cause: int) -> None:
    """One failure makes all its peers fail alike; that is a likelihood, no proof."""
    exits = [worker_exit(rank, OWN, sign_because=f"raised {way}") for rank, way in enumerate(ways)]
    judgement = root_cause.judge(exits)
    assert judgement.cause is exits[cause]
    assert judgement.role is Role.UNDECIDED
    assert root_cause.judge([*exits, worker_exit(3, STOPPED)]).cause is exits[cause]
    one_failed_by_its_host = [*exits[1:], worker_exit(0, HOST)]
    assert root_cause.judge(one_failed_by_its_host).cause is exits[1]


def test_what_others_did_not_do_is_no_evidence_before_all_exits_are_reported() -> None:
    """Of those reported only one worker still ran: likely the cause, and certain once all exits are reported."""
    exits = [worker_exit(0, PEER), worker_exit(1, STOPPED)]
    assert root_cause.judge(exits).role is Role.CAUSE
    assert root_cause.judge(exits, complete=False).role is Role.UNDECIDED
    assert root_cause.judge([*exits, worker_exit(2, OWN)], complete=False).role is Role.CAUSE


def test_without_exits_there_is_no_cause() -> None:
    """The judgement says so."""
    assert root_cause.judge([]) == root_cause.Judgement(None, Role.UNDECIDED, "no worker was seen to exit")


def test_every_exit_gets_a_role_and_a_reason() -> None:
    """Cause, collateral or undecided; beside an undecided cause an unclear exit is undecided, not collateral."""
    exits = [worker_exit(0, PEER), worker_exit(1, OWN), worker_exit(2, STOPPED), worker_exit(3, UNCLEAR)]
    judged = root_cause.roles(exits, root_cause.judge(exits))
    assert [each.role for each in judged] == [Role.COLLATERAL, Role.CAUSE, Role.COLLATERAL, Role.COLLATERAL]
    exits = [worker_exit(0, UNCLEAR), worker_exit(1, UNCLEAR), worker_exit(2, STOPPED)]
    judged = root_cause.roles(exits, root_cause.judge(exits))
    assert [each.role for each in judged] == [Role.UNDECIDED, Role.UNDECIDED, Role.COLLATERAL]
    assert all(each.because for each in judged)
