"""The question whether workers may run on, over real sockets: what is answered, and to whom nothing is."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import time
from collections.abc import Iterator

import pytest

from elastic_agent.rendezvous.driver import channel
from elastic_agent.rendezvous.driver.channel import TcpChannel
from elastic_agent.rendezvous.records import Witness

SECRET = bytes(range(32))


def never_warned(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture
def witness() -> Iterator[Witness]:
    """It lets workers of round 3 and later ones run on."""
    made = TcpChannel(never_warned)
    yield Witness("n1", "127.0.0.1", made.open("n1", SECRET, lambda number: number >= 3))
    made.close()


@pytest.fixture
def asker() -> Iterator[TcpChannel]:
    made = TcpChannel(never_warned)
    made.open("n0", SECRET, lambda number: False)
    yield made
    made.close()


def said_to(witness: Witness, sent: bytes) -> bytes:
    """All that it answers to these bytes, until it closes the connection."""
    with socket.create_connection((witness.addr, witness.port), timeout=10) as link:
        link.sendall(sent)
        said = b""
        while piece := link.recv(1000):
            said += piece
    return said


def test_it_is_hmac_sha256() -> None:
    """As the standard library has it, which would load OpenSSL."""
    for secret in (b"", SECRET, os.urandom(64)):
        assert channel.mac(secret, b"some ", b"bytes") == hmac.new(secret, b"some bytes", hashlib.sha256).digest()


def test_all_must_say_yes_in_time(witness: Witness, asker: TcpChannel) -> None:
    """One that says no, or that nobody serves, is enough."""
    assert asker.ask(3, (witness,), 5.0)
    assert asker.ask(4, (witness, witness), 5.0)
    assert asker.ask(4, (), 5.0)
    assert not asker.ask(2, (witness,), 5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began_s = time.monotonic()
        assert not asker.ask(3, (witness, Witness("n2", "127.0.0.1", silent.getsockname()[1])), 0.3)
        assert time.monotonic() - began_s < 5.0
    assert not asker.ask(3, (witness, Witness("n2", "127.0.0.1", 0)), 5.0)
    assert not asker.ask(3, (Witness("n2", "no-such-host.invalid", 80),), 5.0)


def test_an_answer_is_for_one_question_to_one_node(witness: Witness, asker: TcpChannel) -> None:
    """Another identity at the same port gets no yes, and no answer fits another question."""
    assert not asker.ask(3, (Witness("n2", witness.addr, witness.port),), 5.0)
    first, second = channel.question(SECRET, 3, "n1"), channel.question(SECRET, 3, "n1")
    said = said_to(witness, first)
    assert channel.says_yes(SECRET, first, said)
    assert not channel.says_yes(SECRET, second, said)
    assert (len(first), len(said)) == (76, 37)


def test_who_does_not_know_the_secret_gets_nothing(witness: Witness) -> None:
    """Not a byte: to a question with another secret, changed, cut, or to any other bytes."""
    right = channel.question(SECRET, 3, "n1")
    wrong = [channel.question(b"another", 3, "n1"), b"GET / HTTP/1.1\r\n\r\n".ljust(76), b"\0" * 76]
    wrong += [bytes((*right[:at], right[at] ^ 1, *right[at + 1 :])) for at in range(0, len(right), 5)]
    assert [said_to(witness, sent) for sent in wrong] == [b""] * len(wrong)
    with socket.create_connection((witness.addr, witness.port), timeout=10) as link:
        link.sendall(right[:-1])
        began_s = time.monotonic()
        assert link.recv(100) == b""
        assert time.monotonic() - began_s < 4 * channel.LASTS_S


def test_idle_connections_keep_nobody_from_asking(witness: Witness, asker: TcpChannel) -> None:
    """The oldest of more than 32 is closed."""
    idle = [socket.create_connection((witness.addr, witness.port), timeout=10) for _ in range(3 * channel.CONNECTIONS)]
    assert asker.ask(3, (witness,), 5.0)
    for link in idle:
        link.close()


def test_nothing_is_answered_once_it_is_closed(asker: TcpChannel) -> None:
    made = TcpChannel(never_warned)
    port = made.open("n1", SECRET, lambda number: True)
    witness = Witness("n1", "127.0.0.1", port)
    assert asker.ask(3, (witness,), 5.0)
    made.close()
    made.close()
    assert not asker.ask(3, (witness,), 1.0)
