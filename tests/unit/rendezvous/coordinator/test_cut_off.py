"""When a round begins without nodes that are dead or cut off: once their workers have surely ended."""

from __future__ import annotations

import pytest

from elastic_agent.rendezvous.coordinator import explain
from elastic_agent.rendezvous.coordinator.events import BeatsSeen, DeadlineReached, ReadBeats
from elastic_agent.rendezvous.records import NodeRecord, NodeState, RoundPhase
from support.builders import record
from support.rigs.coordinators import LEASE_S, Coordinator, Store, running

ALONE_S = 60.0
RULES = {"fences": True, "alone_s": ALONE_S}


def lost(*, permitted_round: int = 0, members: tuple[str, ...] = ("a", "b")) -> Coordinator:
    """Round 1 of these members is over, as b was lost at second 10, and the others wait for the next."""
    made = running(*members, min_nodes=1, **RULES)
    made.now = 10.0
    made.read(*(name for name in members if name != "b"))
    assert made.state.phase is RoundPhase.OVER
    return made.publish(*(back(name, permitted_round) for name in members if name != "b"))


def back(node: str, permitted_round: int = 0) -> NodeRecord:
    return record(node, 3, NodeState.WAITING, 1, fenced_round=1, permitted_round=permitted_round)


def begins_at(coordinator: Coordinator, *alive: str) -> float:
    """The first second at which the next round runs."""
    until = coordinator.now + 2 * ALONE_S
    while coordinator.state.number == 1 and coordinator.now < until:
        if coordinator.state.readings.pending:
            coordinator.read(*alive)
        else:
            coordinator.now += 0.25
            coordinator.step(DeadlineReached())
    return coordinator.now


def test_a_witness_that_has_let_nobody_run_on_is_enough() -> None:
    """The next round begins as soon as the leases were read once more."""
    assert begins_at(lost(), "a") == 10.0


def test_what_a_witness_has_permitted_is_waited_for() -> None:
    """For three quarters of a lease behind its record."""
    assert begins_at(lost(permitted_round=1), "a") == pytest.approx(10.0 + 0.75 * LEASE_S)


def test_one_witness_that_has_permitted_nothing_is_enough() -> None:
    """The node that is lost needs the permission of each."""
    made = running("a", "b", "c", min_nodes=1, **RULES)
    made.now = 10.0
    made.read("a", "c").publish(back("a", 1), back("c"))
    assert begins_at(made, "a", "c") == 10.0


def test_without_a_witness_the_node_is_waited_for_as_long_as_it_may_run_alone() -> None:
    """By its own record, where that says how long. The coordinator, which had no place, says for whom it waits."""
    made = running("a", "b", min_nodes=1, **RULES)
    made.publish(record("b", 3, NodeState.WORKING, 1, alone_s=20.0))
    made = made.successor("s", min_nodes=1, **RULES)
    made.publish(record("s"))
    began_s = made.now
    made.now += LEASE_S + 1
    made.read("s")
    assert made.state.phase is RoundPhase.OVER
    waits = explain.waiting(made.state, made.now, made.rules)
    assert "until a, b, which are dead or cut off, have surely ended their workers of round 1" in waits
    assert begins_at(made, "s") == pytest.approx(began_s + LEASE_S + 1 + ALONE_S, abs=0.5)


def test_a_successor_takes_no_member_of_a_round_that_was_forgotten_for_one_that_waits() -> None:
    """Node a is cut off before its record shows its place. The job began again without any member of that round, so the
    announcement that the successor reads names none; the others have read it, and have no worker of that round."""
    made = Coordinator(Store(), "a", 1, min_nodes=1, max_nodes=1, **RULES).publish(record("a"))
    assert made.state.phase is RoundPhase.RUNNING
    made = made.successor("s", min_nodes=1, **RULES).publish(record("s"), record("t"))
    made.now += LEASE_S + 1
    made.read("s", "t").publish(back("s"), back("t"))
    assert (made.state.phase, made.store.announced.members if made.store.announced else None) == (RoundPhase.OVER, ())
    made = made.successor("t", min_nodes=1, **RULES)
    assert made.state.number == 1
    began_s = made.now
    assert begins_at(made, "s", "t") >= began_s + ALONE_S


def test_the_leases_are_read_again_once_the_end_of_the_round_is_announced() -> None:
    """A node that came back before may have read that its round runs, and started its workers: it is waited for."""
    made = running("a", "b", min_nodes=1, **RULES)
    made.now = 10.0
    made.read("a")
    assert any(isinstance(effect, ReadBeats) for effect in made.effects)
    made.publish(back("a"))
    assert made.state.number == 1
    made.read("a", "b")
    assert made.state.number == 1
    made.publish(record("b", 3, NodeState.STOPPING, 1)).publish(record("b", 4, NodeState.WAITING, 1))
    assert made.state.number == 2


def test_nodes_without_workers_are_not_waited_for() -> None:
    """One that had reported that they are gone, one that had ended, and one that never had a place."""
    for left in (record("b", 3, NodeState.WAITING, 1), record("b", 3, NodeState.ENDED, 1)):
        made = running("a", "b", min_nodes=1, **RULES)
        made.publish(left)
        made.now = 10.0
        made.read("a").publish(back("a"))
        assert begins_at(made, "a") == 10.0


def test_in_the_memory_of_one_process_nobody_is_waited_for() -> None:
    """As before: there is no fence."""
    made = running("a", "b", min_nodes=1)
    made.now = 10.0
    made.read("a").publish(back("a"))
    assert made.state.number == 2


def test_a_node_of_which_no_process_is_left_is_not_waited_for() -> None:
    """An agent on its host says so; that they are on one host is not concluded from names, but from its presence."""
    made = all_lost("on b")
    waits = explain.waiting(made.state, made.now, made.rules)
    assert "until a, b, which are dead or cut off, have surely ended" in waits
    made.publish(record("s", 2, ended_here=("on a", "on b")))
    assert begins_at(made, "s") < made.now + 1.0
    assert made.state.number == 2


def test_each_silent_node_is_waited_for_on_its_own() -> None:
    """Who has seen the end of one has seen nothing of another, which may be on another host."""
    made = all_lost("on b").publish(record("s", 2, ended_here=("on a",)))
    began_s = made.now
    assert "until b, which is dead or cut off, has surely ended" in explain.waiting(made.state, made.now, made.rules)
    assert begins_at(made, "s") == pytest.approx(began_s + ALONE_S, abs=0.5)


def test_a_node_without_a_presence_is_waited_for() -> None:
    """Whatever others say."""
    made = all_lost("").publish(record("s", 2, ended_here=("on a", "")))
    began_s = made.now
    assert begins_at(made, "s") == pytest.approx(began_s + ALONE_S, abs=0.5)


def all_lost(presence: str) -> Coordinator:
    """Nodes a, with presence "on a", and b, with this one, were members of round 1, and s has come after their end."""
    made = running("a", "b", min_nodes=1, **RULES)
    made.publish(record("a", 3, NodeState.WORKING, 1, presence="on a"))
    made.publish(record("b", 3, NodeState.WORKING, 1, presence=presence))
    made = made.successor("s", min_nodes=1, **RULES)
    made.publish(record("s"))
    made.now += LEASE_S + 1
    return made.read("s")


def test_the_master_of_a_new_round_is_a_member_of_it() -> None:
    """Not the node that was it before and is lost, whatever its record still offers."""
    made = running("a", "b", "c", min_nodes=1, **RULES).successor("b", min_nodes=1, **RULES)
    made.now += LEASE_S + 1
    made.read("b", "c")
    for name in "bc":
        made.publish(record(name, 3, NodeState.WAITING, 1, fenced_round=1))
    begins_at(made, "b", "c")
    assert made.state.phase is RoundPhase.RUNNING
    members = [member.node for member in made.state.members]
    assert sorted(members) == ["b", "c"]
    assert made.state.placement.master_addr == f"{members[0]}.example"


# -- where a node hosts the store, and coordinates ------------------------------------------------------------------

HOSTED = {**RULES, "hosted": True}


def silent(coordinator: Coordinator, *names: str, alive: tuple[str, ...] = (), until_s: float) -> float:
    """The first second at which the next round runs; these send no heartbeat any more, and those do."""
    count = 1
    while coordinator.state.number == 1 and coordinator.now < until_s:
        coordinator.now += 0.25
        count += 1
        coordinator.step(BeatsSeen(dict.fromkeys(names, 1) | dict.fromkeys(alive, count)), DeadlineReached())
        if coordinator.state.phase is RoundPhase.OVER:
            coordinator.publish(*(back(name) for name in ("a", *alive) if coordinator.store.records[name].seq < 3))
    return coordinator.now


def hosted(*names: str) -> Coordinator:
    """Node a hosts the store; round 1 of these nodes runs, and all have sent a heartbeat."""
    made = running(*names, min_nodes=1, **HOSTED)
    return made.step(BeatsSeen(dict.fromkeys(names[1:], 1)))


def test_the_host_is_no_witness() -> None:
    assert [witness.node for witness in hosted("a", "b", "c").state.placement.witnesses] == ["b", "c"]


def test_the_only_guest_of_a_host_is_waited_for_as_long_as_its_last_heartbeat_lets_it_run() -> None:
    """1.25 leases: it has nobody else to ask, and a host that stands still for less than a lease must not end it."""
    assert silent(hosted("a", "b"), "b", until_s=99.0) == pytest.approx(1.35 * LEASE_S, abs=0.5)


def test_another_guest_of_the_host_vouches_for_the_workers_of_a_lost_one() -> None:
    assert silent(hosted("a", "b", "c"), "b", alive=("c",), until_s=99.0) == pytest.approx(LEASE_S, abs=0.5)


def test_guests_that_are_cut_off_together_are_waited_for_as_long_as_they_may_run_alone() -> None:
    """Each may have let the other run on."""
    assert silent(hosted("a", "b", "c"), "b", "c", until_s=99.0) == pytest.approx(LEASE_S + ALONE_S, abs=1.0)
