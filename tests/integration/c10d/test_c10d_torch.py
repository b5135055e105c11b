"""The c10d store and torch: the same protocol, the servers of several torch versions, effects of importing torch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from elastic_agent.rendezvous.c10d import server
from elastic_agent.rendezvous.c10d.store import C10dStore, open_c10d
from elastic_agent.rendezvous.store import FIRST_EPOCH
from support.c10d_stores import BOUND_S, hosting, raw_client


def test_our_client_and_torchs_see_the_same_keys(host: C10dStore) -> None:
    """Both use the same protocol, so torch's own tools can read the store."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # re-exported without saying so

    # A long time-out: torch's client may make a reverse look-up.
    theirs = TCPStore(host.endpoint.host, host.endpoint.port, timeout=timedelta(seconds=30), wait_for_workers=False)
    with closing(raw_client(host)) as ours:
        ours.put("key", b"\x00value")
        assert theirs.get("key") == b"\x00value"
        theirs.set("other", "theirs")
        assert ours.get(["other", "none"]) == {"other": b"theirs"}
        assert (theirs.add("n", 5), ours.add("n", 2), theirs.get("n")) == (5, 7, b"7")
        assert ours.create("n", b"0") == b"7"
        ours.delete(["n", "none"])
        assert ours.have(["n", "key"]) == [False, True]


def test_the_older_server_without_libuv_works_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """USE_LIBUV=0 is torch's own switch for it."""
    monkeypatch.setenv("USE_LIBUV", "0")
    with hosting() as host, closing(open_c10d(str(host.endpoint), "job", is_host=False)) as guest:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(guest.wait_round, 0, 60.0)
            host.announce(1, b"round 1", FIRST_EPOCH)
            assert waiting.result(BOUND_S) == (1, b"round 1")
        guest.publish_node("n1", b"one")
        assert host.wait_nodes(0, BOUND_S)[1] == {"n1": b"one"}
        assert host.read_beats(["n1"]) == {}
        assert guest.wait_round(1, 0.0) is None


@pytest.mark.parametrize(("version", "libuv"), [("2.4.1+cu121", False), ("2.7.1", False), ("2.13.0+cpu", True)])
def test_torch_before_2_8_serves_without_libuv(version: str, libuv: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its libuv server refuses a socket that already listens (seen with 2.4.1 and 2.5.0), as the agent's does."""
    import torch
    from torch.torch_version import TorchVersion

    monkeypatch.delenv("USE_LIBUV", raising=False)
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        made: Any = server._start(bound, *bound.getsockname())
    assert made.libuvBackend is libuv


def test_a_client_does_not_import_torch(host: C10dStore) -> None:
    """Only the node that serves imports it."""
    code = (
        "import sys\n"
        "from elastic_agent.rendezvous.c10d.store import open_c10d\n"
        f"open_c10d('{host.endpoint}', 'job', is_host=False).close()\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_connections_cause_no_reverse_look_up(host: C10dStore) -> None:
    """The server asks no name server about its clients; one that does not answer would block it for seconds."""
    slowest = 0.0
    for _ in range(60):
        started = time.monotonic()
        raw_client(host).close()
        slowest = max(slowest, time.monotonic() - started)
    assert slowest < 1.0


def test_hosting_leaves_no_trace_in_the_environment(host: C10dStore) -> None:
    """Workers inherit neither torch's log level nor anything else that the agent sets for itself."""
    inherited = subprocess.run(["env"], check=True, capture_output=True, text=True).stdout
    assert "TORCH_CPP_LOG_LEVEL" not in os.environ
    assert "TORCH_CPP_LOG_LEVEL" not in inherited
    assert host.hosted


def test_the_error_of_a_host_without_torch() -> None:
    """The line names the endpoint and what to install."""
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from elastic_agent.rendezvous.c10d.store import open_c10d\n"
        "from elastic_agent.rendezvous.store import StoreError\n"
        "try:\n"
        "    open_c10d('127.0.0.1:0', 'job')\n"
        "except StoreError as why:\n"
        "    print(why)\n"
    )
    error = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30).stdout
    assert "needs torch" in error
    assert "install torch" in error
