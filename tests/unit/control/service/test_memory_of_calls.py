"""Memory that calls over TCP leave free goes back to the kernel."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading

import pytest

from elastic_agent.control.remote import server
from elastic_agent.control.remote.server import GIVEN_BACK_EVERY, Threads

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
