"""Held ports: which sockets can use one, and which cannot."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from elastic_agent.agent.processes.ports import PortHold

IP_LOCAL_PORT_RANGE = 51
"""From <linux/in.h>, Linux 6.3: what this socket may be given, low port in the lower 16 bits, high in the upper."""


@pytest.fixture
def hold() -> Iterator[PortHold]:
    """A held port, released after the test."""
    with contextlib.closing(PortHold()) as held:
        yield held


def confined(family: int, port: int, reuse: bool) -> socket.socket:
    """A socket that the kernel can give no port but this one."""
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    try:
        made.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=I", port << 16 | port))
    except OSError as error:
        made.close()
        pytest.skip(f"this kernel cannot confine a socket to one port: {error}")
    return made


def test_torchs_store_listens_on_a_held_port() -> None:
    """A TCPStore of either kind, in another process, binds a held port; a client reaches it by IPv4."""
    pytest.importorskip("torch")
    code = (
        "import sys; from datetime import timedelta; from torch.distributed import TCPStore\n"
        "for libuv, port in enumerate(map(int, sys.argv[1:])):\n"
        "    how = {'timeout': timedelta(seconds=20), 'use_libuv': bool(libuv)}\n"
        "    host = TCPStore('localhost', port, is_master=True, wait_for_workers=False, **how)\n"
        "    guest = TCPStore('127.0.0.1', port, is_master=False, **how)\n"
        "    guest.set('a', 'b'); print(host.get('a').decode(), host.port)\n"
    )
    with contextlib.closing(PortHold()) as one, contextlib.closing(PortHold()) as two:
        argv = [sys.executable, "-c", code, str(one.port), str(two.port)]
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert ran.stdout.split() == ["b", str(one.port), "b", str(two.port)], ran.stderr


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ""), (socket.AF_INET6, "")]
)
def test_bind_to_port_0_never_gets_a_held_port(hold: PortHold, family: int, address: str, reuse: bool) -> None:
    """It fails when the held port is the only one the kernel may choose."""
    with confined(family, hold.port, reuse) as other:  # noqa: SIM117 (what is before the with must not raise)
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            other.bind((address, 0))


def test_no_connection_goes_out_from_a_held_port(hold: PortHold) -> None:
    """connect fails when the held port is the only one the kernel may choose as its source."""
    with socket.create_server(("127.0.0.1", 0)) as server, confined(socket.AF_INET, hold.port, True) as other:
        assert other.connect_ex(server.getsockname()) == errno.EADDRNOTAVAIL


def test_the_confined_sockets_of_these_tests_get_a_free_port() -> None:
    """Once the hold is closed, bind and connect succeed: the two tests above are able to fail."""
    held = PortHold()
    held.close()
    with socket.create_server(("127.0.0.1", 0)) as server, confined(socket.AF_INET, held.port, True) as other:
        other.connect(server.getsockname())
        assert other.getsockname()[1] == held.port
    with confined(socket.AF_INET6, hold_free(), True) as other:
        other.bind(("", 0))


def hold_free() -> int:
    """The number of a port that was free a moment ago."""
    with contextlib.closing(PortHold()) as held:
        return held.port


def test_two_thousand_ephemeral_ports_never_include_the_held_one(hold: PortHold) -> None:
    """On any kernel, by trying: bind(0) gives 2000 other ports, all of which stay open."""
    with contextlib.ExitStack() as kept:
        for _ in range(2000):
            other = kept.enter_context(socket.socket())
            other.bind(("127.0.0.1", 0))
            assert other.getsockname()[1] != hold.port


def test_holds_are_distinct_and_closing_one_frees_its_port() -> None:
    """Twenty holds have twenty ports; one that was released can be held again by its number."""
    holds = [PortHold() for _ in range(20)]
    assert len({held.port for held in holds}) == 20
    for held in holds:
        held.close()
    again = PortHold(holds[0].port)
    assert again.port == holds[0].port
    again.close()


def test_a_port_that_another_process_listens_on_cannot_be_held() -> None:
    """The error names the port and the next step."""
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot hold TCP port {port}: Address already in use; stop the process"):
            PortHold(port)


def test_a_host_without_ipv6_holds_by_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where AF_INET6 is refused, the port is held by an IPv4 socket, and released like any."""
    from elastic_agent.agent.processes import ports

    real = ports.bound_in

    def no_ipv6(family: int, address: str, port: int) -> object:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no IPv6 here")
        return real(family, address, port)

    monkeypatch.setattr(ports, "bound_in", no_ipv6)
    with contextlib.closing(PortHold()) as held, socket.socket() as other:  # noqa: SIM117 (as above)
        with pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", held.port))
