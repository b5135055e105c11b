"""Which node is charged one restart for the end of a round, and when that is decided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_agent.rendezvous.coordinator import charging, events, machine
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules
from elastic_agent.rendezvous.failures import (
    MAX_ANNOUNCED_EXITS,
    PASSIVE,
    EndKind,
    Judged,
    Role,
    Sign,
    WorkerFailure,
)
from elastic_agent.rendezvous.records import NodeState, Outcome, RoundPhase
from support.builders import after_records, record, worker_exit

RULES = Rules(own="a", min_nodes=2, max_nodes=2)


def job(**local: bool) -> Rendezvous:
    """Nodes a and b, two workers each, in round 1."""
    state = Rendezvous(epoch=1)
    for node in "ab":
        state = publish(state, 0.0, node, 1, NodeState.WAITING, number=0, local=local.get(node, False))
    for node in "ab":
        state = publish(state, 1.0, node, 2, NodeState.WORKING, local=local.get(node, False))
    return state


def publish(
    state: Rendezvous,
    now: float,
    node: str,
    seq: int,
    phase: NodeState,
    *exits: WorkerFailure,
    number: int = 1,
    left: int = 0,
    local: bool = False,
) -> Rendezvous:
    failure = next((death for death in exits if death.sign not in PASSIVE), None)
    made = record(node, seq, phase, number, failure, restarts_left=left, nproc=2, deaths=exits, charge_local=local)
    return after_records(state, now, RULES, made)


def test_exits_of_nodes_with_one_name_are_kept_apart() -> None:
    """Containers that share a host name, each with its agent as process 1: all nodes are `host:1`, and pids repeat."""
    exits = [replace(worker_exit(rank, Sign.OWN), node="host:1", local_rank=0, pid=7) for rank in (0, 2)]
    state = publish(job(), 2.0, "a", 3, NodeState.BROKEN, exits[0])
    state = publish(state, 2.1, "b", 3, NodeState.BROKEN, exits[1])
    assert [death.rank for death in state.placement.deaths] == [0, 2]


def test_the_node_of_the_cause_is_charged_not_that_of_its_echo() -> None:
    """Node a failed first, but only lost its peer; node b has the cause and a restart left, and is charged."""
    state = publish(job(), 2.0, "a", 3, NodeState.BROKEN, worker_exit(0, Sign.PEER))
    assert (state.phase, state.end.hold) == (RoundPhase.OVER, True)
    state = publish(state, 2.1, "a", 4, NodeState.WAITING, worker_exit(0, Sign.PEER), worker_exit(1, Sign.PEER))
    state = publish(state, 2.2, "b", 3, NodeState.WAITING, worker_exit(2, Sign.OWN), worker_exit(3, Sign.PEER), left=1)
    assert state.phase is RoundPhase.RUNNING
    assert state.end.ending is not None
    assert (state.end.ending.kind, state.end.ending.charged, state.end.ending.role) == (
        EndKind.FAILURE,
        "b",
        Role.CAUSE,
    )
    assert [each.death.rank for each in state.end.ending.judged] == [0, 1, 2, 3]


def test_a_node_with_charge_local_is_charged_for_every_failure_of_its_own() -> None:
    """--charge local: node a lost its peer only, has no restart left, and ends the job as it would under torchrun."""
    state = publish(job(a=True), 2.0, "a", 3, NodeState.BROKEN, worker_exit(0, Sign.PEER), local=True)
    state = publish(state, 2.1, "a", 4, NodeState.WAITING, worker_exit(0, Sign.PEER), local=True)
    state = publish(state, 2.2, "b", 3, NodeState.WAITING, worker_exit(2, Sign.OWN), left=1)
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.FAILED)
    assert "no restarts are left on a" in state.because


@pytest.mark.parametrize("local", [False, True])
def test_a_failure_of_the_host_charges_no_node(local: bool) -> None:
    """Node b lost its nursery and node a failed as a consequence; neither has a restart left, and the job goes on."""
    state = publish(job(b=local), 2.0, "a", 3, NodeState.BROKEN, worker_exit(0, Sign.PEER))
    state = publish(state, 2.1, "b", 3, NodeState.WAITING, worker_exit(2, Sign.HOST), local=local)
    state = publish(state, 2.2, "a", 4, NodeState.WAITING, worker_exit(0, Sign.PEER), worker_exit(1, Sign.PEER))
    assert (state.phase, state.number) == (RoundPhase.RUNNING, 2)
    assert state.end.ending is not None
    assert (state.end.ending.kind, state.end.ending.charged, state.end.ending.role) == (EndKind.FAILURE, "", Role.CAUSE)
    assert state.end.ending.failure is not None
    assert state.end.ending.failure.rank == 2


def test_a_round_that_a_departure_ended_charges_no_node() -> None:
    """Exits while a node leaves are not charged; what they show by themselves is still announced."""
    state = publish(job(), 2.0, "a", 3, NodeState.BROKEN, worker_exit(0, Sign.PEER))
    state = publish(state, 2.1, "b", 3, NodeState.LEAVING)
    state = publish(state, 2.2, "a", 4, NodeState.WAITING, worker_exit(0, Sign.PEER), worker_exit(1, Sign.OWN))
    assert state.end.ending is not None
    assert (state.end.ending.kind, state.end.ending.charged) == (EndKind.DEPARTURE, "")
    assert [each.role for each in state.end.ending.judged] == [Role.COLLATERAL, Role.UNDECIDED]


def test_a_certain_cause_ends_the_round_without_a_node_that_stops_slowly() -> None:
    """Node b's workers ignore SIGTERM; the cause on a is known, so the job ends EVIDENCE_S later without b's exits."""
    state = publish(job(), 2.0, "a", 3, NodeState.BROKEN, worker_exit(0, Sign.OWN))
    state = publish(state, 2.1, "a", 4, NodeState.WAITING, worker_exit(0, Sign.OWN))
    state = publish(state, 2.1, "b", 3, NodeState.STOPPING)
    state = machine.step(state, events.DeadlineReached(), 2.0 + charging.EVIDENCE_S / 2, RULES).state
    assert state.phase is RoundPhase.OVER
    state = machine.step(state, events.DeadlineReached(), 2.0 + charging.EVIDENCE_S, RULES).state
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.FAILED)


def test_a_certain_cause_waits_for_a_member_that_has_not_reported_its_round() -> None:
    """Node b was placed in round 1, and left while the store stood still: its record is of the round before. Only when
    it is lost is it known that its departure came first, which charges no node."""
    state = Rendezvous(epoch=1)
    for node in "ab":
        state = publish(state, 0.0, node, 1, NodeState.WAITING, number=0)
    state = publish(state, 1.0, "a", 2, NodeState.WORKING)
    state = publish(state, 2.0, "a", 3, NodeState.BROKEN, worker_exit(0, Sign.OWN))
    state = publish(state, 2.1, "a", 4, NodeState.WAITING, worker_exit(0, Sign.OWN))
    state = machine.step(state, events.DeadlineReached(), 2.0 + charging.EVIDENCE_S, RULES).state
    assert (state.phase, state.end.settled) == (RoundPhase.OVER, False)
    state = replace(state, nodes=state.nodes.with_all([replace(state.nodes["b"], lost=True)]))
    state = machine.step(state, events.DeadlineReached(), 9.0, RULES).state
    assert state.end.ending is not None
    assert (state.end.ending.kind, state.end.ending.charged) == (EndKind.DEPARTURE, "")


def test_an_uncertain_cause_waits_for_all_exits() -> None:
    """Node a lost a peer; the cause is judged only once b's workers have exited and b has published how."""
    state = publish(job(), 2.0, "a", 3, NodeState.BROKEN, worker_exit(0, Sign.PEER))
    state = publish(state, 2.1, "b", 3, NodeState.STOPPING)
    state = machine.step(state, events.DeadlineReached(), 20.0, RULES).state
    assert state.phase is RoundPhase.OVER
    state = publish(state, 20.0, "b", 4, NodeState.WAITING, worker_exit(2, Sign.STANDING), left=1)
    state = publish(state, 20.1, "a", 4, NodeState.WAITING, worker_exit(0, Sign.PEER))
    assert state.end.ending is not None
    assert (state.end.ending.charged, state.end.ending.role) == ("b", Role.CAUSE)


def test_an_announcement_is_bounded() -> None:
    """Sixteen exits, the cause among them, and only the cause's output: every node reads this."""
    many = [worker_exit(0, Sign.PEER, pid=number, said="x" * 4000) for number in range(30)]
    cause = worker_exit(1, Sign.OWN, said="y" * 4000)
    kept = charging._kept(tuple(Judged(each, Role.UNDECIDED, "") for each in [*many, cause]), cause)
    assert len(kept) == MAX_ANNOUNCED_EXITS
    assert kept[-1].death is cause
    assert {each.death.said for each in kept[:-1]} == {"is peer"}


def test_an_echo_of_a_preemption_charges_nobody_and_the_job_is_preempted() -> None:
    """The failure of a peer that lost its connection is read first; then the worker that exited with 75."""
    asked = replace(worker_exit(2, Sign.QUIET), exit_code=75)
    state = publish(job(), 2.0, "a", 3, NodeState.BROKEN, worker_exit(0, Sign.PEER))
    assert state.phase is RoundPhase.OVER
    state = publish(state, 2.1, "b", 3, NodeState.BROKEN, asked)
    state = publish(state, 2.2, "a", 4, NodeState.WAITING, worker_exit(0, Sign.PEER))
    state = publish(state, 2.3, "b", 4, NodeState.WAITING, asked)
    ending = state.end.ending
    assert ending is not None
    assert (ending.kind, ending.charged) == (EndKind.PREEMPTION, "")
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.PREEMPTED)


def test_a_worker_that_was_asked_to_stop_preempts_nothing() -> None:
    """A script that answers SIGTERM with 75 belongs to a node that leaves, or to a round that ended elsewhere."""
    stopped = replace(worker_exit(2, Sign.STOPPED), exit_code=75, stopped_by=15)
    state = publish(job(), 2.0, "a", 3, NodeState.BROKEN, worker_exit(0, Sign.OWN), left=1)
    state = publish(state, 2.1, "b", 3, NodeState.WAITING, stopped)
    state = publish(state, 2.2, "a", 4, NodeState.WAITING, worker_exit(0, Sign.OWN), left=1)
    ending = state.end.ending
    assert ending is not None
    assert (ending.kind, ending.charged) == (EndKind.FAILURE, "a")
