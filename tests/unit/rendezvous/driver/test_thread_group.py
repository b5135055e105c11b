"""What a thread on the store says of an error that ends it (`rendezvous/driver/threads.py`)."""

from __future__ import annotations

import errno
import os
import queue
from collections.abc import Callable

from elastic_agent.rendezvous.driver.events import StoreFailed
from elastic_agent.rendezvous.driver.threads import ThreadGroup

BOUND_S = 10.0


def _said(body: Callable[[], None]) -> str:
    posted: queue.SimpleQueue[object] = queue.SimpleQueue()
    ThreadGroup(posted.put, 5.0).spawn("test", body)
    failed = posted.get(timeout=BOUND_S)
    assert isinstance(failed, StoreFailed)
    return str(failed.error)


def _raise(number: int) -> None:
    raise OSError(number, os.strerror(number))


def test_a_host_without_descriptors_is_named_as_such() -> None:
    assert _said(lambda: _raise(errno.EMFILE)).endswith(
        "Too many open files; this node has run out of a resource (see ulimit -a)"
    )


def test_another_error_of_the_system_is_not_told_as_a_resource_that_ran_out() -> None:
    assert _said(lambda: _raise(errno.EADDRINUSE)) == "cannot reach the store: Address already in use"
