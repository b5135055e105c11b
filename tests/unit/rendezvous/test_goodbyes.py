"""What a voter makes of the goodbye of its host (`rendezvous/driver/succession.py`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from elastic_agent.rendezvous.driver.succession import Succession
from elastic_agent.rendezvous.election.state import Rules
from elastic_agent.rendezvous.records import Member, Round, RoundPhase, Witness
from elastic_agent.rendezvous.store import Store
from support.builders import announcement

BOUND_S = 10.0
VOTERS = (Witness("a", "h", 1, "a:1"), Witness("b", "h", 2, "b:1"))


class Network:
    """In place of `Links`, and of the store: what reaches this node, and what it does."""

    fd, port, reserved, epoch = -1, 2, "b:1", 1

    def __init__(self) -> None:
        self.heard: Callable[[str, str], None] = lambda node, text: None
        self.dropped: list[str] = []
        self.kept: tuple[str, ...] = ()

    def open(self, node: str, secret: bytes, died: object, heard: Callable[[str, str], None], asked: object) -> None:
        self.heard = heard

    def keep(self, peers: tuple[Witness, ...]) -> None:
        self.kept = tuple(peer.node for peer in peers)

    def drop(self, node: str) -> None:
        self.dropped.append(node)

    def close(self) -> None:
        """There is nothing to close."""

    def notify_moves(self, moved: object) -> None:
        """The host never moves here."""

    def host(self, epoch: int, node: str, job: bytes, announced: tuple[int, bytes], at: str) -> None:
        raise AssertionError("only `serve` hosts")

    def suspect(self, given_up: bool) -> None:
        raise AssertionError("the host is not silent")

    def tell_old(self) -> None:
        raise AssertionError("the host before is dead")


class Voter:
    """Node b, whose store node a hosts."""

    def __init__(self) -> None:
        self.network, self.serves = Network(), threading.Event()
        self.said: list[str] = []
        network: Any = self.network
        self.succession = Succession(Rules("b", 5.0), network, self.said.append)
        self.succession.open(network, b"secret", lambda epoch: self.serves.set(), self._spawn)

    def _spawn(self, role: str, body: Callable[[], None]) -> None:
        threading.Thread(target=body, name=f"test-{role}", daemon=True).start()

    def reads(self, version: int, nodes: str = "ab") -> None:
        """This announcement, of a round of these, which the heartbeat that is acknowledged behind it names."""
        network: Any = self.network
        store: Store = network
        self.succession.follow(_announced(version, nodes))
        self.succession.acknowledged(store, self.succession.now(), version)


def _announced(version: int, nodes: str) -> Round:
    members = tuple(Member(node, f"node-{node}", rank, rank, 1) for rank, node in enumerate(nodes))
    seen = announcement(RoundPhase.RUNNING, 1, members, version=version)
    return replace(seen, epoch=1, voters=VOTERS, host=VOTERS[0])


@pytest.fixture
def b() -> Iterator[Voter]:
    made = Voter()
    yield made
    made.succession.close()


def test_a_host_that_said_goodbye_is_replaced_though_its_process_lives(b: Voter) -> None:
    b.reads(7)
    assert b.network.kept == ("a",)
    b.network.heard("a", "bye 1:7")
    assert b.serves.wait(BOUND_S)
    assert b.network.dropped == ["a"]
    assert any("elected to host" in text for text in b.said)


def test_a_host_that_is_in_no_round_any_more_is_told_by_its_name(b: Voter) -> None:
    """It left the round, and serves until that is read."""
    b.reads(7)
    b.reads(8, "b")
    assert b.succession.host_name == "node-a"


def test_what_the_host_announced_last_is_read_before_it_counts_as_gone(b: Voter) -> None:
    """And this node does not connect to it again for that."""
    b.reads(6)
    b.network.heard("a", "bye 1:7")
    assert not b.serves.wait(0.5)
    assert b.network.dropped == []
    b.reads(7)
    assert b.serves.wait(BOUND_S)
    assert b.network.dropped == ["a"]
    b.reads(8)
    assert b.network.kept == ()


def test_a_goodbye_that_cannot_be_read_changes_nothing(b: Voter) -> None:
    b.reads(7)
    for text in ("bye ", "bye 1", "bye x:7", "bye 1:7:7"):
        b.network.heard("a", text)
    assert not b.serves.wait(0.5)
