"""The process that serves the workers' store, below a real nursery: its start, its end, and what it leaves."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from elastic_agent.agent.lifecycle.events import NurseryLost, WorkersGone
from elastic_agent.agent.processes.ports import PortHold
from elastic_agent.agent.processes.protocol import Exited, Fact, Launch, StoreEnded
from elastic_agent.agent.processes.supervisor import Supervisor
from elastic_agent.rendezvous.c10d.client import TcpStoreClient, connect
from support.procfs import parent_of, read, settled_files, slowed, wait_exit
from support.rigs.one_host import alive

BOUND_S = 60.0


def serve(supervisor: Supervisor, number: int = 1) -> int:
    """Have a store served; its port."""
    hold = PortHold(listening=True)
    supervisor.serve_store(number, hold.fileno())
    hold.close()
    return hold.port


def client(port: int) -> TcpStoreClient:
    return connect((socket.AF_INET, ("127.0.0.1", port)), "the store", BOUND_S, BOUND_S)


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), BOUND_S).close()
    except ConnectionRefusedError:
        return True
    return False


def facts_until(supervisor: Supervisor, last: type[Fact]) -> list[Fact]:
    seen: list[Fact] = []
    poll = select.poll()
    poll.register(supervisor.fileno(), select.POLLIN)
    while not any(isinstance(fact, last) for fact in seen):
        assert poll.poll(BOUND_S * 1000), f"no {last.__name__} within {BOUND_S} s after {seen}"
        seen += supervisor.observe()
    return seen


def store_process(port: int) -> int:
    """Pid of the process that serves this port, found by its socket, as `ss -ltnp` finds it."""
    rows = [
        line.split() for family in ("tcp", "tcp6") for line in read(f"/proc/net/{family}").decode().splitlines()[1:]
    ]
    inodes = {row[9] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if read(f"/proc/{pid}/comm") == b"elastic-store\n":
            with suppress(FileNotFoundError):  # another test's, which ends or closes a connection just now
                links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
                if any(f"socket:[{inode}]" in links for inode in inodes):
                    return int(pid)
    raise AssertionError(f"no process elastic-store listens on {port}")


def plain(*argv: str, key: int = 0) -> Launch:
    return Launch(key, argv, dict(os.environ), "/")


def test_the_process_starts_with_the_first_client_and_holds_nothing_else(supervisor: Supervisor) -> None:
    """Its descriptors are the three standard ones, its socket, its epoll, the pipe by which its end is seen, and one
    for each client."""
    port = serve(supervisor)
    one, other = client(port), client(port)
    one.put("key", b"value")
    assert other.get(["key"]) == {"key": b"value"}
    pid = store_process(port)
    assert settled_files(pid) == 6 + 2
    assert parent_of(parent_of(pid)) == supervisor._guardian
    one.close()
    other.close()


def test_it_is_no_worker(supervisor: Supervisor) -> None:
    """It delays no WorkersGone, and signals to the workers do not reach it."""
    port = serve(supervisor)
    one = client(port)
    supervisor.start([plain("sleep", "1000")])
    supervisor.signal(signal.SIGTERM)
    supervisor.kill()
    facts = facts_until(supervisor, WorkersGone)
    assert any(isinstance(fact, Exited) for fact in facts)
    supervisor.start([plain("true")])
    facts_until(supervisor, WorkersGone)
    one.put("key", b"value")
    one.close()


def test_its_end_is_reported_once_with_the_reason(supervisor: Supervisor) -> None:
    """StoreEnded names the round and the signal; the port is closed; an order to end it does nothing then."""
    port = serve(supervisor, 7)
    client(port).close()
    os.kill(store_process(port), signal.SIGKILL)
    assert facts_until(supervisor, StoreEnded) == [StoreEnded(7, "it was killed by signal 9")]
    assert is_refused(port)
    supervisor.end_store()
    supervisor.start([plain("true")])
    assert not any(isinstance(fact, StoreEnded) for fact in facts_until(supervisor, WorkersGone))


def test_an_order_ends_it_and_closes_its_port(supervisor: Supervisor) -> None:
    """Also before the first client has come; nothing is reported."""
    ports = [serve(supervisor), serve(supervisor)]
    one = client(ports[1])
    pid = store_process(ports[1])
    assert is_refused(ports[0])
    supervisor.end_store()
    wait_exit(pid, time.monotonic() + BOUND_S)
    supervisor.start([plain("true")])
    assert not any(isinstance(fact, StoreEnded) for fact in facts_until(supervisor, WorkersGone))
    assert is_refused(ports[1])
    one.close()


def test_it_ends_when_its_supervisor_closes(supervisor: Supervisor) -> None:
    """Nothing of it is left when `close` returns."""
    port = serve(supervisor)
    one = client(port)
    pid = store_process(port)
    supervisor.close()
    assert not alive(pid)
    assert is_refused(port)
    one.close()


def test_it_ends_with_the_nursery(supervisor: Supervisor) -> None:
    """Whatever kills that."""
    port = serve(supervisor)
    one = client(port)
    pid = store_process(port)
    os.kill(parent_of(pid), signal.SIGKILL)
    facts_until(supervisor, NurseryLost)
    wait_exit(pid, time.monotonic() + BOUND_S)
    assert not alive(pid)
    one.close()


def test_it_ends_with_the_agent() -> None:
    """kill -9 of the agent: within a second nothing is left."""
    code = (
        "import sys, signal\n"
        "from elastic_agent.agent.processes.ports import PortHold\n"
        "from elastic_agent.agent.processes.supervisor import Supervisor\n"
        "supervisor, hold = Supervisor(), PortHold(listening=True)\n"
        "supervisor.open()\n"
        "supervisor.serve_store(1, hold.fileno())\n"
        "hold.close()\n"
        "print(hold.port, flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        port = int(agent.stdout.readline())
        one = client(port)
        pid = store_process(port)
        began = time.monotonic()
        agent.kill()
        wait_exit(pid, began + BOUND_S)
        assert time.monotonic() - began < slowed(5.0)
        one.close()


def test_without_a_process_for_it_the_store_is_lost(supervisor: Supervisor) -> None:
    """fork is refused when the first client comes: reported, and the client is not left to wait."""
    import resource

    port = serve(supervisor)
    supervisor.start([plain("true")])
    facts_until(supervisor, WorkersGone)
    used = settled_files(supervisor._nursery)
    resource.prlimit(supervisor._nursery, resource.RLIMIT_NOFILE, (used, used))  # no descriptor for its pipe
    # Whether the port is closed before `connect` has returned or after, it is the same to the client.
    with (
        pytest.raises(ConnectionResetError),
        socket.create_connection(("127.0.0.1", port), BOUND_S) as waiting,
    ):
        waiting.recv(1)
    assert facts_until(supervisor, StoreEnded) == [StoreEnded(1, "Too many open files: it cannot be started")]
