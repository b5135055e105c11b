"""A c10d store whose host closes, restarts, is killed or freezes."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from elastic_agent.rendezvous.c10d.store import C10dStore, open_c10d
from elastic_agent.rendezvous.store import StoreForeign, StoreUnreachable
from support.c10d_stores import BOUND_S, elsewhere, hosting


def test_every_session_breaks_when_the_host_closes(host: C10dStore, guest: C10dStore) -> None:
    """A call that blocks too: no thread waits for a store that has ended."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(guest.wait_round, 0, 60.0)
        host.close_host()
        with pytest.raises(StoreUnreachable, match=str(host.endpoint)):
            waiting.result(BOUND_S)
    with pytest.raises(StoreUnreachable):
        guest.session()


def test_a_store_restarted_empty_is_not_taken_for_the_old_one() -> None:
    """Its versions begin at 1 again, so a node of the old one would wait for ever."""
    with hosting() as first:
        endpoint = str(first.endpoint)
        guest = open_c10d(endpoint, "job", is_host=False)
    with closing(guest), hosting("job", endpoint), pytest.raises(StoreForeign, match="was restarted"):
        guest.session()


def test_a_killed_host_is_noticed_at_once() -> None:
    """SIGKILL of the serving agent ends a blocked call, and every later one, with StoreUnreachable."""
    with (
        elsewhere() as (process, endpoint),
        closing(open_c10d(endpoint, "job")) as guest,
        ThreadPoolExecutor(1) as pool,
    ):
        assert not guest.hosted
        waiting = pool.submit(guest.wait_round, 0, 60.0)
        process.kill()
        started = time.monotonic()
        with pytest.raises(StoreUnreachable):
            waiting.result(BOUND_S)
        with pytest.raises(StoreUnreachable):
            guest.beat("n1", 1)
        assert time.monotonic() - started < 3


def test_calls_on_a_frozen_host_keep_their_deadline() -> None:
    """torch's own client would block for as long as the server is stopped."""
    with elsewhere() as (process, endpoint), closing(open_c10d(endpoint, "job", call_timeout_s=0.3)) as guest:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # the signal takes effect only after kill() has returned
        for call in (lambda: guest.beat("n1", 1), guest.session, lambda: guest.wait_round(0, 0.1)):
            started = time.monotonic()
            with pytest.raises(StoreUnreachable):
                call()
            assert time.monotonic() - started < 5
        os.kill(process.pid, signal.SIGCONT)
        with closing(guest.session()) as again:
            assert again.beat("n1", 2) == 0
