"""Connections between voters: they carry messages for who knows the secret, and their end is evidence of a death."""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from elastic_agent.rendezvous.driver import links as links_module
from elastic_agent.rendezvous.driver.links import Links
from elastic_agent.rendezvous.records import Witness

SECRET = b"s" * 32
BOUND_S = 10.0


class Side:
    """One node, and what it hears."""

    def __init__(self, node: str, secret: bytes = SECRET) -> None:
        self.node = node
        self.died: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.heard: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.links = Links(lambda text: None)
        self.links.open(node, secret, self.died.put, lambda *said: self.heard.put(said), self._answer)

    def _answer(self, text: str, reply: Callable[[str], None]) -> None:
        self.asked.put(text)
        reply(f"{self.node} got {text}")

    @property
    def witness(self) -> Witness:
        return Witness(self.node, "127.0.0.1", self.links.port)

    def say(self, node: str, text: str) -> None:
        """Send this until it is answered: the connection may not be there yet."""
        while self.heard.empty():
            self.links.send(node, text)
            try:
                self.heard.put(self.heard.get(timeout=0.05))
            except queue.Empty:
                continue


@pytest.fixture
def sides() -> Iterator[Callable[..., Side]]:
    made: list[Side] = []

    def make(node: str, secret: bytes = SECRET) -> Side:
        made.append(Side(node, secret))
        return made[-1]

    yield make
    for each in made:
        each.links.close()


def test_a_message_is_answered_on_the_same_connection(sides: Callable[..., Side]) -> None:
    a, b = sides("a"), sides("b")
    a.links.keep((b.witness,))
    a.say("b", "one")
    assert a.heard.get(timeout=BOUND_S) == ("b", "b got one")


def test_a_kernel_that_closes_and_refuses_is_evidence(sides: Callable[..., Side]) -> None:
    a, b = sides("a"), sides("b")
    a.links.keep((b.witness,))
    a.say("b", "one")
    b.links.close()
    assert a.died.get(timeout=BOUND_S) == "b"


def test_who_was_never_connected_is_not_known_to_be_dead(sides: Callable[..., Side]) -> None:
    """A refused connection alone: a firewall refuses, too."""
    a, b = sides("a"), sides("b")
    port = b.links.port
    b.links.close()
    a.links.keep((Witness("b", "127.0.0.1", port),))
    with pytest.raises(queue.Empty):
        a.died.get(timeout=0.5)


def test_who_owns_the_workers_keeps_the_node_from_counting_as_dead(sides: Callable[..., Side]) -> None:
    """An agent is killed, and its listening socket is held by another process: only the end of that is evidence."""
    a = sides("a")
    agent_to_test, to_test = os.pipe()
    agent = os.fork()
    if agent == 0:
        side = Side("b")
        holder = os.fork()
        if holder == 0:
            for fd in range(3, 256):
                if fd not in (side.links.fd,):
                    try:
                        os.close(fd)
                    except OSError:
                        continue
            signal.pause()
        os.write(to_test, f"{side.links.port} {holder}\n".encode())
        signal.pause()
    port, holder = map(int, os.read(agent_to_test, 64).split())
    try:
        a.links.keep((Witness("b", "127.0.0.1", port),))
        a.say("b", "one")
        os.kill(agent, signal.SIGKILL)
        os.waitpid(agent, 0)
        with pytest.raises(queue.Empty):
            a.died.get(timeout=0.5)
    finally:
        os.kill(holder, signal.SIGKILL)
        os.close(agent_to_test)
        os.close(to_test)
    assert a.died.get(timeout=BOUND_S) == "b"


def test_a_goodbye_reaches_who_is_connected_and_who_connects_later(sides: Callable[..., Side]) -> None:
    """It is said until they have closed their connections, however soon that is."""
    a, b, late = sides("a"), sides("b"), sides("late")
    a.links.keep((b.witness,))
    a.say("b", "one")
    assert a.heard.get(timeout=BOUND_S) == ("b", "b got one")
    saying = threading.Thread(target=b.links.say_goodbye, args=("bye 1:7",))
    saying.start()
    assert a.heard.get(timeout=BOUND_S) == ("b", "bye 1:7")
    a.links.drop("b")
    saying.join(BOUND_S)
    assert not saying.is_alive()
    late.links.keep((b.witness,))
    assert late.heard.get(timeout=BOUND_S) == ("b", "bye 1:7")


def test_a_goodbye_waits_for_no_node_that_does_not_answer(
    sides: Callable[..., Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "GOODBYE_S", 0.05)
    a, b = sides("a"), sides("b")
    a.links.keep((b.witness,))
    a.say("b", "one")
    b.links.say_goodbye("bye 1:7")
    assert a.died.empty()


def test_who_does_not_know_the_secret_is_not_heard(sides: Callable[..., Side]) -> None:
    a, stranger = sides("a", b"x" * 32), sides("b")
    a.links.keep((stranger.witness,))
    a.links.send("b", "one")
    with pytest.raises(queue.Empty):
        stranger.asked.get(timeout=0.3)
    with socket.create_connection(("127.0.0.1", stranger.links.port)) as link:
        link.sendall(b"GET / HTTP/1.1\r\n" * 8)
        try:
            assert link.recv(1) == b""
        except ConnectionResetError:
            pass  # it had not read all
