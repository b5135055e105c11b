"""A c10d store that one node hosts after the other: who finds it, and what it holds then."""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from elastic_agent.agent.worker_store.in_thread import ServerThread
from elastic_agent.rendezvous.c10d.keys import Keys
from elastic_agent.rendezvous.c10d.listed import LOOK_S, Listed, Pointer, Reserve, read_pointer
from elastic_agent.rendezvous.c10d.moving import MovingStore, open_listed
from elastic_agent.rendezvous.endpoint import parse_endpoint
from elastic_agent.rendezvous.store import JobMismatch, Store, StoreUnreachable
from support.network import free_port

Open = Callable[..., MovingStore]
BOUND_S = 20.0


class Pausing(ServerThread):
    """A server that can be made to stand still, as that of a host that is frozen does."""

    runs = threading.Event()

    def turn(self, closing: int = -1) -> bool:
        self.runs.wait(BOUND_S)
        return super().turn(closing)


@pytest.fixture
def pausing() -> Iterator[type[Pausing]]:
    Pausing.runs.set()
    yield Pausing
    Pausing.runs.set()


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens the store as a node of this name, which has the first endpoint that is free."""
    endpoints = [parse_endpoint(f"127.0.0.1:{free_port()}") for _ in range(3)]
    made: list[MovingStore] = []

    def join(store: Store) -> None:
        store.write_job(b"job")

    def make(node: str, wait_s: float = BOUND_S, start: Reserve = ServerThread, silence_s: float = 5.0) -> MovingStore:
        made.append(
            open_listed(
                Listed(endpoints, Keys("moving")), node, start,
                connect_timeout_s=wait_s, silence_s=silence_s, on_wait=None,
                cancelled=threading.Event(), join=join, warn=print,
            )
        )  # fmt: skip
        return made[-1]

    yield make
    for each in made:
        each.close_host()


def test_the_first_of_the_list_begins_the_job_and_others_join(opened: Open) -> None:
    a, b = opened("a"), opened("b")
    assert (a.hosted, b.hosted, b.epoch) == (True, False, 1)
    assert a.reserved != b.reserved
    assert b.write_job(b"mine") == b"job"


def test_who_waits_for_a_first_node_that_does_not_resolve_says_so() -> None:
    """It begins the job, so the others may wait in vain."""
    listed = Listed([parse_endpoint("nowhere.invalid:5"), parse_endpoint(f"127.0.0.1:{free_port()}")], Keys("moving"))
    said: list[str] = []
    with pytest.raises(StoreUnreachable, match=r"nowhere\.invalid:5 begins it, but nowhere\.invalid does not resolve"):
        open_listed(
            listed, "a", ServerThread,
            connect_timeout_s=0.5, silence_s=0.1, on_wait=said.append,
            cancelled=threading.Event(), join=lambda _: None, warn=print,
        )  # fmt: skip
    assert "but nowhere.invalid does not resolve" in said[0]


def test_two_nodes_that_each_come_first_in_their_own_list_begin_no_two_jobs() -> None:
    """Whichever looks first: one of them is refused, or joins what the other has begun."""
    names = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    reserved, late = (Listed(list(map(parse_endpoint, order)), Keys("moving")) for order in (names, names[::-1]))
    try:
        reserved.reserve(ServerThread)
        with pytest.raises(JobMismatch, match=f"-endpoint {names[1]},{names[0]}, and {names[0]} has {names[0]}"):
            open_listed(
                late, "b", ServerThread,
                connect_timeout_s=BOUND_S, silence_s=5.0, on_wait=None,
                cancelled=threading.Event(), join=lambda _: None, warn=print,
            )  # fmt: skip
    finally:
        reserved.close()


def test_sessions_move_to_the_next_host_with_their_record(opened: Open) -> None:
    """b hosts what c has published, though c sends nothing but heartbeats."""
    a, b, c = opened("a"), opened("b"), opened("c")
    moves: list[tuple[str, int]] = []
    c.notify_moves(lambda host, epoch: moves.append((host, epoch)))
    with closing(c.session()) as writer:
        writer.publish_node("c", b"record")
    a.close_host()
    with pytest.raises(StoreUnreachable):
        c.session()
    b.host(2, "b", b"job", (10_007, b"announced"))
    with closing(c.session()) as moved, closing(b.session()) as reader:
        _moved(b, moved, reader)
    assert moves == [("b", 2)]


def _moved(b: MovingStore, moved: MovingStore, reader: MovingStore) -> None:
    assert (b.hosted, moved.hosted, moved.epoch) == (True, False, 2)
    assert moved.beat("c", 3) == 10_007
    assert moved.wait_round(7, 0.0) == (10_007, b"announced")
    assert reader.wait_nodes(0, 5.0)[1] == {"c": b"record"}
    assert moved.host_count is not None


def test_the_node_of_the_dead_host_finds_the_job_and_begins_none(opened: Open) -> None:
    """Neither while nobody hosts it yet, nor once another node does."""
    a, b = opened("a"), opened("b")
    a.close_host()
    with pytest.raises(StoreUnreachable, match="the job's host is gone, and no other node hosts it yet"):
        opened("a", wait_s=0.3)
    b.host(2, "b", b"job", (10_001, b"announced"))
    back = opened("a")
    assert (back.hosted, back.epoch) == (False, 2)


def killed(store: MovingStore) -> None:
    """Ends its node. Its port is free on return, as that of a process that has ended."""
    where = parse_endpoint(store.reserved)
    store.close_host()
    deadline = time.monotonic() + BOUND_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((where.host, where.port)) == errno.ECONNREFUSED:
                return
        assert time.monotonic() < deadline


def test_the_node_of_the_dead_host_waits_for_one_that_is_silent_for_a_moment(
    opened: Open, pausing: type[Pausing]
) -> None:
    """A host that stands still for less than a lease is no reason for a second job of the same run id."""
    a, b = opened("a"), opened("b", start=pausing)
    killed(a)
    b.host(2, "b", b"job", (10_001, b"announced"))
    pausing.runs.clear()
    thaw = threading.Timer(2 * LOOK_S, pausing.runs.set)
    thaw.start()
    back = opened("a")
    thaw.join()
    assert (back.hosted, back.epoch) == (False, 2)


def test_a_job_begins_without_a_node_that_stays_silent(opened: Open, pausing: type[Pausing]) -> None:
    """One without power is not waited for longer than a host may stand still."""
    a, _ = opened("a"), opened("b", start=pausing)
    killed(a)
    pausing.runs.clear()
    began = time.monotonic()
    assert opened("a", silence_s=1.5).hosted
    assert time.monotonic() - began >= 1.5


def test_a_host_that_has_no_descriptor_left_for_a_moment_serves_on(opened: Open) -> None:
    """Sessions that are open go on, and who comes meanwhile waits."""
    a, b = opened("a"), opened("b")
    where = parse_endpoint(a.reserved)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as newcomer:
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            newcomer.connect((where.host, where.port))
            b.beat("b", 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert opened("c").write_job(b"mine") == b"job"


def test_a_pointer_that_another_program_wrote_is_none() -> None:
    assert read_pointer(Pointer(3, "n", "h:1").encode()) == Pointer(3, "n", "h:1")
    assert read_pointer(Pointer(3, "n", "höst:1").encode()) == Pointer(3, "n", "höst:1")
    for value in (b"", b"3 n", b"x n h:1 -", b"3 n a:b:c -", b"\xff" * 2000):
        assert read_pointer(value) is None
