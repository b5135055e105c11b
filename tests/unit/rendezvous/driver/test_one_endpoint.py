"""What a member of a job with one endpoint does for those that know it alone (`rendezvous/driver/succession.py`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from elastic_agent.rendezvous.driver.succession import Succession
from elastic_agent.rendezvous.election.state import Rules
from elastic_agent.rendezvous.records import Member, Round, RoundPhase, Witness
from support.builders import announcement, record

BOUND_S = 10.0


class OneEndpointNode:
    """Node b, its store and its links: what it does with them."""

    fd, port, reserved, epoch = -1, 2, ":77", 1

    def __init__(self) -> None:
        self.died: Callable[[str, bool], None] = lambda node, left: None
        self.expected: tuple[str, ...] = ()
        self.spawned: list[str] = []
        self.said: list[str] = []
        self.outlooks: list[str] = []
        stand_in: Any = self
        self.succession = Succession(Rules("b", 5.0), stand_in, self.said.append, self.outlooks.append)
        self.succession.open(stand_in, b"secret", lambda epoch: None, self._spawn)

    def _spawn(self, role: str, body: Callable[[], None]) -> None:
        self.spawned.append(role)
        if role == "voter":
            self._vote = body

    def takes_part(self, until: Callable[[], bool]) -> None:
        """As a voter, until something has happened."""
        thread = threading.Thread(target=self._vote, name="test-voter", daemon=True)
        thread.start()
        deadline = time.monotonic() + BOUND_S
        while not until():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self.succession.close()
        thread.join(BOUND_S)

    def open(self, node: str, secret: bytes, died: Callable[[str, bool], None], *given: object) -> None:
        """Nobody connects here."""
        self.died = died

    def close(self) -> None:
        """Nothing is open."""

    def keep(self, peers: tuple[Witness, ...]) -> None:
        """As above."""

    def notify_moves(self, moved: object) -> None:
        """The tests say who hosts."""

    def host(self, epoch: int, node: str, job: bytes, announced: tuple[int, bytes], at: str) -> None:
        raise AssertionError("nobody is elected here")

    def expect(self, places: tuple[str, ...]) -> None:
        self.expected = places

    def tell(self) -> None:
        raise AssertionError("the thread is not started here")

    def tell_old(self) -> None:
        raise AssertionError("as above")

    def suspect(self, given_up: bool) -> None:
        raise AssertionError("its host is not silent")


def _announced(epoch: int, voters: str = "ab", host: str = "a") -> Round:
    members = tuple(Member(node, f"node-{node}", rank, rank, 1) for rank, node in enumerate("abc"))
    seen = announcement(RoundPhase.RUNNING, 1, members, version=epoch)
    able = tuple(Witness(node, "h", 1, f"{node}:1") for node in voters)
    return replace(seen, epoch=epoch, voters=able, host=Witness(host, "h", 1, f"{host}:1"))


def test_a_reserved_port_is_published_with_the_address_of_the_node() -> None:
    b = OneEndpointNode()
    assert b.succession.recorded(record("b", addr="10.0.0.2")).store == "10.0.0.2:77"
    assert b.succession.recorded(record("b", addr="10.0.0.2")).vote_port == 2
    six = OneEndpointNode()
    assert six.succession.recorded(record("b", addr="fd00::2")).store == "[fd00::2]:77"


def test_a_next_host_is_expected_where_other_voters_could_host() -> None:
    b = OneEndpointNode()
    b.succession.follow(_announced(1))
    assert set(b.expected) == {"a:1"}
    b.succession.follow(_announced(1, "abc"))
    assert set(b.expected) <= {"a:1", "c:1"}


def test_no_next_host_is_expected_before_the_first_round() -> None:
    """Whose host is killed and comes back begins a new job at once."""
    b = OneEndpointNode()
    b.succession.follow(replace(_announced(1, voters=""), phase=RoundPhase.GATHERING))
    assert b.expected == ()


def test_no_next_host_is_expected_once_the_only_voter_may_not_vote_any_more() -> None:
    """It has read of the round, and no heartbeat of it was acknowledged since."""
    b = OneEndpointNode()
    b.succession.follow(_announced(1))
    assert set(b.expected) == {"a:1"}
    b.died("a", False)
    b.takes_part(lambda: b.expected == ())


def test_voters_tell_the_old_endpoint_once_there_was_another_host() -> None:
    """Once; nobody else does, as a thousand nodes would knock there each second."""
    b = OneEndpointNode()
    b.succession.follow(_announced(1))
    assert b.spawned == ["voter"]
    b.succession.follow(_announced(2, host="c"))
    b.succession.follow(_announced(3, host="c"))
    assert b.spawned == ["voter", "usher", "herald"]
    late = OneEndpointNode()
    late.succession.follow(_announced(2, voters="ac", host="c"))
    assert late.spawned == ["voter"]


def test_what_becomes_of_the_job_is_not_said_with_what_people_must_know() -> None:
    b = OneEndpointNode()
    b.succession.follow(_announced(1, "abc"))
    assert b.said == []
    assert "another of 3 nodes hosts it and all go on" in b.outlooks[0]
