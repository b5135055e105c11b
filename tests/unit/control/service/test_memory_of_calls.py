"""Memory that calls over TCP leave free goes back to the kernel."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from elastic_agent.agent.loop import Loop
from elastic_agent.control.control_socket import Service
from elastic_agent.control.remote import server
from elastic_agent.control.remote.server import GIVEN_BACK_EVERY, Remote, Threads
from elastic_agent.control.remote.tokens import Tokens
from support.outside.remote import CONTROL, HEALTH, WRITES, Door, headers

GLIBC = hasattr(ctypes.CDLL(None), "malloc_trim")
BOUND_S = 60.0
SCRIPT = """
import sys
from elastic_agent.control.remote.memory import give_back

def rss_kib():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])

held = [bytes([number % 256]) * 60_000 for number in range(1000)]  # each from malloc, none by mmap
last = held[-1]
del held
before = rss_kib()
give_back()
print(before - rss_kib())
"""


@pytest.mark.skipif(not GLIBC, reason="only glibc keeps it")
def test_memory_that_is_free_below_memory_in_use_is_given_back() -> None:
    """60 MB were freed, and the last of it is still in use."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=BOUND_S)
    assert int(done.stdout) > 40_000


def test_memory_is_given_back_after_so_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of calls that fail; not after each, as it takes milliseconds."""
    given: list[int] = []
    monkeypatch.setattr(server, "give_back", lambda: given.append(1))
    threads = Threads()
    for number in range(2 * GIVEN_BACK_EVERY + 1):
        made = threads.submit(int, "x" if number % 2 else "1")
        assert (made.exception(BOUND_S) is None) is (number % 2 == 0)
    for each in threading.enumerate():
        if each.name == "elastic-agent-call":
            each.join(BOUND_S)
    assert len(given) == 2


def calls_kept() -> int:
    """Calls that gRPC's server has not forgotten."""
    gc.collect()
    kind = vars(sys.modules["grpc._server"])["_RPCState"]
    return sum(type(each) is kind for each in gc.get_objects())


@pytest.mark.slow
def test_calls_whose_message_cannot_be_read_leave_nothing_behind(tmp_path: Path) -> None:
    """gRPC kept each of them for good, 25 KiB a call, also of those that have no token."""
    door = Door(tmp_path / "door")
    address, loop, agent = door.address(), Loop(), None
    service = Service("job", lambda *_: None, lambda *_: pytest.fail("nobody connects"))
    tls = Path(door.cert).read_bytes(), Path(door.key).read_bytes()
    remote: Any = Remote(service, address, tls, Tokens(str(door.tokens)), lambda *_: None)
    remote.begin(agent, loop)
    with door.channel(address) as channel:
        for name in (f"{CONTROL}/Save", f"{CONTROL}/Events", f"{HEALTH}/Check", f"{HEALTH}/Watch"):
            call: Any = channel.unary_unary(f"/{name}")
            for metadata in (headers(WRITES), ()):
                with pytest.raises(grpc.RpcError) as caught:
                    call(b"\xff\xff", metadata=metadata, timeout=BOUND_S, wait_for_ready=True)
                refused: Any = caught.value
                assert refused.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAUTHENTICATED)
    remote.close()
    assert calls_kept() == 0
    loop.close()
