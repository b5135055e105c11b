"""The server of the workers' store, through torch's own client: the same answers as torch's server gives."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest

from elastic_agent.agent.processes.ports import PortHold
from elastic_agent.agent.worker_store.requests import MAGIC, MAX_KEY_BYTES, MAX_VALUE_BYTES, Requests
from elastic_agent.agent.worker_store.table import Client, Table
from support.desk import BOUND_S
from support.procfs import kill_and_read

SERVE = "import sys; from elastic_agent.agent.worker_store.server import serve; serve(int(sys.argv[1]))"
OPEN = b"\0" + struct.pack("=I", MAGIC)

Connect = Callable[[], Any]


@pytest.fixture
def port() -> Iterator[int]:
    """Where our server serves, in a process of its own."""
    hold = PortHold(listening=True)
    argv = [sys.executable, "-c", SERVE, str(hold.fileno())]
    with subprocess.Popen(argv, pass_fds=[hold.fileno()]) as server:
        hold.close()
        yield hold.port
        assert server.poll() is None
        server.kill()


def client(port: int, timeout_s: float = BOUND_S) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    timeout = timedelta(seconds=timeout_s)
    return TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timeout)


@pytest.fixture(params=["ours", "torch's"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes torch's client of our server, and of torch's: what holds here is the same for both."""
    if request.param == "ours":
        port = request.getfixturevalue("port")
        yield lambda: client(port)
        return
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    where = server.port
    yield lambda: client(where)
    del server  # torch stops it with the last reference


def in_thread(call: Callable[[], object]) -> Callable[[], object]:
    """Begin a call that blocks; returns a function that waits for its result."""
    results: list[object] = []
    thread = Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()

    def result() -> object:
        thread.join(BOUND_S)
        assert results, f"no answer within {BOUND_S} s"
        return results[0]

    return result


def test_values_are_set_read_compared_appended_and_deleted(connect: Connect) -> None:
    """SET, GET, COMPARE_SET, APPEND, DELETE_KEY, CHECK, GETNUMKEYS."""
    one, other = connect(), connect()
    one.set("a", "1")
    assert other.get("a") == b"1"
    assert other.compare_set("a", "2", "3") == b"1"
    assert other.compare_set("a", "1", "3") == b"3"
    assert other.compare_set("new", "", "first") == b"first"
    assert other.compare_set("absent", "expected", "x") == b"expected"
    one.append("a", "45")
    one.append("b", "6")
    assert (one.get("a"), one.get("b")) == (b"345", b"6")
    assert (one.check(["a", "b"]), one.check(["a", "absent"])) == (True, False)
    keys = one.num_keys()
    assert (one.delete_key("a"), one.delete_key("a")) == (True, False)
    assert one.num_keys() == keys - 1


def test_counters_are_added_to(connect: Connect) -> None:
    """ADD, also below zero, and on a value that was set as text."""
    store = connect()
    assert [store.add("n", 5), store.add("n", -7), store.add("n", 0)] == [5, -2, -2]
    assert store.get("n") == b"-2"
    store.set("m", "40")
    assert store.add("m", 2) == 42


def test_a_counter_that_holds_no_number_ends_the_connection(connect: Connect) -> None:
    """As torch's server does; that of others goes on."""
    one, other = connect(), connect()
    one.set("text", "abc")
    with pytest.raises(Exception, match=r"(?i)recv|connection|closed|reset"):
        one.add("text", 1)
    assert other.get("text") == b"abc"


def test_many_keys_go_in_one_request(connect: Connect) -> None:
    """MULTI_SET and MULTI_GET, longer than any one read."""
    store = connect()
    keys = [f"key {number}" for number in range(3000)]
    values = [os.urandom(number % 90) for number in range(3000)]
    store.multi_set(keys, values)
    assert store.multi_get(keys) == values


def test_a_value_of_megabytes_goes_through(connect: Connect) -> None:
    """To as many as read it at once."""
    one, others = connect(), [connect() for _ in range(3)]
    value = os.urandom(7 << 20)
    one.set("large", value)
    results = [in_thread(lambda other=other: other.get("large")) for other in others]  # type: ignore[misc]
    assert all(result() == value for result in results)


@pytest.mark.parametrize("how", ["set", "add", "append", "compare_set", "multi_set"])
def test_a_wait_ends_with_the_last_of_its_keys(connect: Connect, how: str) -> None:
    """WAIT on three keys, of which one is there; whatever makes the others ends it."""
    one, other = connect(), connect()
    one.set("there", "x")
    waits = in_thread(lambda: other.multi_get(["there", "first", "last"]))
    for key in ("first", "last"):
        {
            "set": lambda key: one.set(key, "1"),
            "add": lambda key: one.add(key, 1),
            "append": lambda key: one.append(key, "1"),
            "compare_set": lambda key: one.compare_set(key, "", "1"),
            "multi_set": lambda key: one.multi_set([key], ["1"]),
        }[how](key)
    assert waits() == [b"x", b"1", b"1"]


def test_a_wait_that_timed_out_leaves_the_connection_usable(connect: Connect) -> None:
    """CANCEL_WAIT: the key may come later, and answers nothing."""
    one, other = connect(), connect()
    with pytest.raises(Exception, match=r"(?i)time"):
        other.wait(["never"], timedelta(milliseconds=20))
    one.set("never", "after all")
    one.set("next", "1")
    assert (other.get("next"), other.get("never")) == (b"1", b"after all")


def test_queues_give_each_entry_to_one_client(connect: Connect) -> None:
    """QUEUE_PUSH, QUEUE_POP that waits and that does not, QUEUE_LEN."""
    from torch.distributed import QueueEmptyError

    one, other = connect(), connect()
    for entry in ("a", "b"):
        one.queue_push("q", entry)
    assert one.queue_len("q") == 2  # answered after both entries were received
    assert (other.queue_len("q"), other.check(["q"])) == (2, True)
    assert [other.queue_pop("q"), one.queue_pop("q", block=False)] == [b"a", b"b"]
    with pytest.raises(QueueEmptyError):
        one.queue_pop("q", block=False)
    waits = in_thread(lambda: other.queue_pop("q"))
    one.queue_push("q", "c")
    assert waits() == b"c"
    assert (one.queue_len("q"), one.check(["q"])) == (0, False)


def test_keys_are_listed(connect: Connect) -> None:
    """LIST_KEYS, as clients name them."""
    store = connect()
    store.set("a", "1")
    store.add("b", 1)
    assert {"a", "b"} <= set(store.list_keys())


def test_a_barrier_ends_when_all_have_come(connect: Connect) -> None:
    """BARRIER."""
    stores = [connect() for _ in range(4)]
    results = [in_thread(lambda store=store: store.barrier("all", 4) or "done") for store in stores]  # type: ignore[misc]
    assert [result() for result in results] == ["done"] * 4


def test_every_entry_of_a_queue_ends_one_wait(port: int) -> None:
    """Three clients wait, three entries come at once: each client gets one."""
    one, others = client(port), [client(port) for _ in range(3)]
    results = [in_thread(lambda other=other: other.queue_pop("q")) for other in others]  # type: ignore[misc]
    for entry in ("a", "b", "c"):
        one.queue_push("q", entry)
    assert sorted(bytes(result()) for result in results) == [b"a", b"b", b"c"]  # type: ignore[call-overload]


def test_a_client_that_dies_while_it_waits_is_forgotten(port: int) -> None:
    """Its key may still come, and the next to wait for the queue is not overlooked."""
    store = client(port)
    with socket.create_connection(("127.0.0.1", port)) as dying:
        dying.sendall(OPEN + b"\6" + struct.pack("=Q", 1) + struct.pack("=Q", 2) + b"/q" + b"\7")
        assert len(dying.recv(8)) == 8  # the count of keys: the wait before it was read
    waits = in_thread(lambda: client(port).queue_pop("q"))
    store.queue_push("q", "a")
    assert waits() == b"a"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" + struct.pack("=I", MAGIC + 1),
        OPEN + b"\x63",
        OPEN + OPEN,
        OPEN + b"\1" + struct.pack("=Q", MAX_KEY_BYTES + 1),
        OPEN + b"\1" + struct.pack("=Q", 1) + b"k" + struct.pack("=Q", MAX_VALUE_BYTES + 1),
        OPEN + b"\5" + struct.pack("=Q", 2**60),
        OPEN + b"\4" + struct.pack("=Q", 1) + b"k" + struct.pack("=q", 2**62) * 1
        + b"\4" + struct.pack("=Q", 1) + b"k" + struct.pack("=q", 2**62),
    ],
    ids=["http", "magic", "number", "twice", "key", "value", "keys", "sum"],
)  # fmt: skip
def test_what_is_no_request_ends_its_connection_alone(port: int, data: bytes) -> None:
    """A stranger, or a client that asks for what has no answer."""
    other = client(port)
    with socket.create_connection(("127.0.0.1", port), BOUND_S) as stranger:
        stranger.sendall(data)
        while True:
            try:
                if not stranger.recv(100):
                    break
            except ConnectionResetError:
                break
    other.set("a", "1")
    assert other.get("a") == b"1"


def test_a_request_in_pieces_delays_nobody(port: int) -> None:
    """A stranger sends half a request and stays; and one byte at a time makes a whole one."""
    with socket.create_connection(("127.0.0.1", port), BOUND_S) as slow:
        slow.sendall(OPEN + b"\1" + struct.pack("=Q", 2))
        store = client(port)
        store.set("a", "1")
        assert store.get("a") == b"1"
        for byte in b"/b" + struct.pack("=Q", 3) + b"xyz":
            slow.sendall(bytes([byte]))
        assert store.get("b") == b"xyz"


def test_a_client_that_does_not_read_delays_nobody(port: int) -> None:
    """Its answers wait; nothing more of it is read meanwhile."""
    store = client(port)
    store.set("large", os.urandom(1 << 20))
    assert store.check(["large"])  # SET has no answer: until one comes to what follows it, the key may still be missing
    with socket.create_connection(("127.0.0.1", port), BOUND_S) as lazy:
        request = b"\3" + struct.pack("=Q", 6) + b"/large"
        lazy.sendall(OPEN + request * 200)
        store.set("a", "1")
        assert store.get("a") == b"1"
        left = 200 * (8 + (1 << 20))
        while left:
            left -= len(lazy.recv(1 << 20))


def test_as_many_clients_connect_as_the_hard_limit_allows() -> None:
    """The soft limit is raised; at the hard limit the process ends and says why, instead of leaving clients to wait."""
    hold = PortHold(listening=True)
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 60)); {SERVE}"
    argv = [sys.executable, "-c", limited, str(hold.fileno())]
    server = subprocess.Popen(argv, pass_fds=[hold.fileno()], stderr=subprocess.PIPE, text=True)
    hold.close()
    open_sockets: list[socket.socket] = []
    try:
        for _ in range(50):
            open_sockets.append(socket.create_connection(("127.0.0.1", hold.port), BOUND_S))
            open_sockets[-1].sendall(OPEN + b"\7")
            assert len(open_sockets[-1].recv(8)) == 8
        with contextlib.suppress(ConnectionError):  # once the process has ended
            for _ in range(20):
                open_sockets += [socket.create_connection(("127.0.0.1", hold.port), BOUND_S)]
        assert "as many as this host lets one process open; raise ulimit -n" in server.communicate(timeout=BOUND_S)[1]
    finally:
        for each in open_sockets:
            each.close()
        kill_and_read(server)


def test_workers_that_count_restarts_differently_share_their_keys() -> None:
    """torch 2.4 puts TORCHELASTIC_RESTART_COUNT before each key, under torchrun the same on all nodes. Here each node
    counts its own, so workers of a round waited for ever for each other's keys. A store serves one round only."""
    table = Table()
    requests = Requests(table)
    clients = [Client(-1), Client(-1)]
    for count, client in enumerate(clients):
        client.valid = True
        key = b"//worker/attempt_%d/default_pg/0//%d" % (count, count)
        requests.carry_out(client, b"\x01" + struct.pack("=Q", len(key)) + key + struct.pack("=Q", 1) + b"x")
    wanted = b"//worker/attempt_1/default_pg/0//0"
    requests.carry_out(clients[1], b"\x05" + struct.pack("=QQ", 1, len(wanted)) + wanted)
    assert clients[1].answers == b"\0"
    assert set(table.values) == {b"default_pg/0//0", b"default_pg/0//1"}
