"""Until when workers of a node may run, and what it answers as a witness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from elastic_agent.rendezvous.driver.fencing import Fencing
from elastic_agent.rendezvous.records import Member, NodeRecord, NodeState, Round, RoundPhase, Witness

LEASE_S = 10.0
ALONE_S = 60.0
WITNESSES = (Witness("a", "a.example", 1), Witness("b", "b.example", 2), Witness("c", "c.example", 3))
RUNNING = Round(
    7,
    1,
    3,
    RoundPhase.RUNNING,
    "begins",
    tuple(Member(x, x, i, i, 1) for i, x in enumerate("abc")),
    witnesses=WITNESSES,
)
RECORD = NodeRecord("a", "a", NodeState.WORKING, 1, 3)


@dataclass
class Surroundings:
    """Page and channel of node `a`, and what it sees of others on its host."""

    time: float = 1000.0
    until: float = 0.0
    generation: int = 0
    yes: bool = True
    asked: list[tuple[int, tuple[Witness, ...]]] = field(default_factory=list)
    fd: int = -1
    presence: str = "on a"
    looking: list[Callable[[Mapping[str, str]], None]] = field(default_factory=list)

    def look(self, found: Callable[[Mapping[str, str]], None]) -> None:
        self.looking.append(found)

    def now(self) -> float:
        return self.time

    def move(self, until: float, generation: int) -> None:
        self.until, self.generation = until, generation

    def open(self, node: str, secret: bytes, answer: Callable[[int], bool]) -> int:
        return 4711

    def prepare(self, witnesses: tuple[Witness, ...]) -> None:
        pass

    def ask(self, number: int, witnesses: tuple[Witness, ...], timeout_s: float) -> bool:
        self.asked.append((number, witnesses))
        return self.yes

    def close(self) -> None:
        pass


@pytest.fixture
def around() -> Surroundings:
    return Surroundings()


@pytest.fixture
def fencing(around: Surroundings) -> Fencing:
    made = Fencing("a", LEASE_S, ALONE_S, around, around, around)
    made.open(b"secret")
    made.heartbeat_acknowledged(around.time)
    made.follow(RUNNING, made.generation())
    return made


def test_a_heartbeat_counts_from_when_it_was_sent(fencing: Fencing, around: Surroundings) -> None:
    """Not from when it was acknowledged: the node's lease may have begun at any moment between the two."""
    around.time += 3.0
    fencing.heartbeat_acknowledged(around.time - 2.0)
    assert around.until == pytest.approx(1001.0 + 0.65 * LEASE_S)


def test_witnesses_are_asked_after_three_tenths_of_a_lease_without_a_heartbeat(
    fencing: Fencing, around: Surroundings
) -> None:
    """All but this node itself; and nobody is asked before."""
    assert fencing.due_in_s() == pytest.approx(0.3 * LEASE_S)
    around.time += 0.3 * LEASE_S
    assert fencing.due_in_s() == 0.0
    fencing.ask()
    assert around.asked == [(3, WITNESSES[1:])]
    assert around.until == pytest.approx(1000.0 + 0.95 * LEASE_S)
    assert fencing.due_in_s() == pytest.approx(0.2 * LEASE_S)


def test_no_permission_lasts_beyond_what_the_node_may_run_alone(fencing: Fencing, around: Surroundings) -> None:
    """Counted from the last heartbeat that the store has acknowledged."""
    while around.time < 1000.0 + 2 * ALONE_S:
        around.time += 0.2 * LEASE_S
        fencing.ask()
    assert around.until == 1000.0 + ALONE_S


def test_a_refusal_moves_nothing(fencing: Fencing, around: Surroundings) -> None:
    around.yes = False
    before = around.until
    around.time += 4.0
    fencing.ask()
    assert around.until == before


def test_nothing_but_a_heartbeat_opens_a_fence_that_is_passed(fencing: Fencing, around: Surroundings) -> None:
    """And then in another generation: what had been read before is out of date, and so is a round that it named."""
    generation = fencing.generation()
    around.time += LEASE_S
    fencing.ask()
    assert around.until < around.time
    fencing.heartbeat_acknowledged(around.time)
    assert around.until > around.time
    assert (fencing.generation(), around.generation) == (generation + 1, generation + 1)
    assert not fencing.is_current(generation)
    assert fencing.read_in(RUNNING.version) == generation


def test_a_late_answer_to_an_old_heartbeat_opens_nothing(fencing: Fencing, around: Surroundings) -> None:
    """It was sent so long ago that the node may have been lost since."""
    before = around.until
    around.time += 2 * LEASE_S
    fencing.heartbeat_acknowledged(around.time - LEASE_S)
    assert around.until == before


def test_a_witness_permits_until_its_record_says_otherwise(fencing: Fencing) -> None:
    """From the moment on at which the record is given to be written, not later; and the record tells what it did."""
    assert fencing.recorded(RECORD).permitted_round == 0
    assert fencing.permits(3)
    record = fencing.recorded(replace(RECORD, state=NodeState.STOPPING, fenced_round=3))
    assert (record.fenced_round, record.permitted_round, record.witness_port, record.alone_s) == (3, 3, 4711, ALONE_S)
    assert not fencing.permits(3)
    assert fencing.permits(4)


def test_a_permission_of_long_ago_holds_up_no_round(fencing: Fencing, around: Surroundings) -> None:
    """The workers that it let run on have ended: a round is not begun later for a moment in which the store was slow a
    week ago."""
    assert fencing.permits(3)
    around.time += 0.74 * LEASE_S
    fenced = replace(RECORD, state=NodeState.STOPPING, fenced_round=3)
    assert fencing.recorded(fenced).permitted_round == 3
    around.time += 0.02 * LEASE_S
    assert fencing.recorded(fenced).permitted_round == 0
    assert not fencing.permits(3)


def test_who_has_no_place_in_a_round_asks_nobody(fencing: Fencing, around: Surroundings) -> None:
    fencing.follow(replace(RUNNING, version=8, members=RUNNING.members[1:]), fencing.generation())
    around.time += LEASE_S / 2
    fencing.ask()
    assert around.asked == []


def test_neighbours_are_looked_at_once_a_round_is_over(fencing: Fencing, around: Surroundings) -> None:
    """Only then may somebody wait for one; and what was seen is in each record from then on."""
    told: list[tuple[str, ...]] = []
    fencing.on_ended = told.append
    assert not around.looking
    fencing.follow(replace(RUNNING, version=8, phase=RoundPhase.OVER), fencing.generation())
    (found,) = around.looking
    assert fencing.recorded(RECORD).ended_here == ()
    found({"on b": "host:12"})
    record = fencing.recorded(RECORD)
    assert (record.presence, record.ended_here, told) == ("on a", ("on b",), [("host:12",)])


# -- where a node hosts the store ---------------------------------------------------------------------------------


def guest(around: Surroundings, *witnesses: Witness) -> Fencing:
    """Of node `a`, in a round that node h hosts."""
    made = Fencing("a", LEASE_S, ALONE_S, around, around, around, hosted=True)
    made.open(b"secret")
    made.heartbeat_acknowledged(around.time)
    made.follow(replace(RUNNING, witnesses=(WITNESSES[0], *witnesses)), made.generation())
    return made


def test_a_heartbeat_to_a_host_counts_for_nine_tenths_of_a_lease(around: Surroundings) -> None:
    """The host counts a node as lost no earlier than one lease behind its last heartbeat."""
    guest(around, WITNESSES[1]).heartbeat_acknowledged(around.time)
    assert around.until == pytest.approx(1000.0 + 0.9 * LEASE_S)


def test_the_only_guest_of_a_host_asks_nobody_and_runs_on_for_longer(around: Surroundings) -> None:
    """No witness is no permission."""
    made = guest(around)
    made.heartbeat_acknowledged(around.time)
    around.time += LEASE_S
    assert made.due_in_s() > 0
    made.ask()
    assert not around.asked
    assert around.until == pytest.approx(1000.0 + 1.25 * LEASE_S)


def test_a_round_with_more_guests_ends_that_before_its_workers_start(around: Surroundings) -> None:
    """In it a node counts as gone sooner."""
    made = guest(around)
    made.heartbeat_acknowledged(around.time)
    made.follow(replace(RUNNING, version=8, number=4), made.generation())
    assert around.until == pytest.approx(1000.0 + 0.9 * LEASE_S)


def test_the_host_has_no_fence(around: Surroundings) -> None:
    """No round begins without it, also where it became the host; and heartbeats move nothing back."""
    made = guest(around, WITNESSES[1])
    made.host()
    around.time += 100 * LEASE_S
    made.heartbeat_acknowledged(around.time - 50 * LEASE_S)
    made.heartbeat_acknowledged(around.time)
    made.follow(replace(RUNNING, version=8, number=4), made.generation())
    assert around.until > around.time + 1e6
    assert made.is_current(made.generation())
    made.ask()
    assert around.asked == []


def test_the_host_follows_what_it_announces_though_its_fence_is_passed(around: Surroundings) -> None:
    """Else it would not read for whom it waits. It does not follow a round that runs, nor what another has announced:
    by that workers might start beside those of the next host."""
    made = guest(around, WITNESSES[1])
    made.host()
    made.hold(LEASE_S)
    around.time += 2 * LEASE_S
    own = replace(RUNNING, version=8, phase=RoundPhase.GATHERING, host=WITNESSES[0])
    assert made.is_current(made.generation(), own)
    assert not made.is_current(made.generation(), replace(own, host=WITNESSES[1]))
    assert not made.is_current(made.generation(), replace(own, phase=RoundPhase.RUNNING))


def test_a_guest_follows_nothing_while_its_fence_is_passed(around: Surroundings) -> None:
    made = guest(around, WITNESSES[1])
    own = replace(RUNNING, version=8, phase=RoundPhase.GATHERING, host=WITNESSES[0])
    around.time += 2 * LEASE_S
    assert not made.is_current(made.generation(), own)
