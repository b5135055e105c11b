"""Asking an agent whose round is so large that its nodes are in the store."""

from __future__ import annotations

import _socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_agent.control.service.connections import Connections
from elastic_agent.control.service.http import Request
from elastic_agent.control.service.methods import PREFIX

BOUND_S = 10.0


@pytest.fixture
def listener() -> Iterator[_socket.socket]:
    made = _socket.socket(_socket.AF_UNIX)
    yield made
    made.close()


@pytest.mark.parametrize("method", ["Status", "Job"])
def test_a_store_that_does_not_answer_holds_only_who_asks(method: str, listener: _socket.socket) -> None:
    """The nodes are read in a thread, so the agent's loop goes on."""
    reading, answers = threading.Event(), threading.Event()
    posted: list[object] = []

    def members() -> tuple[()]:
        reading.set()
        answers.wait(BOUND_S)
        raise ConnectionRefusedError

    known = SimpleNamespace(node=SimpleNamespace(latest_round=SimpleNamespace(crowd=object())))
    agent: Any = SimpleNamespace(known=lambda: known, members=members, status=lambda: None)
    service: Any = SimpleNamespace(
        agent=agent, run_id="r", began_s=0.0, number=0, deadline_s=None, checkpoints="", progress=None
    )
    ended = threading.Event()

    def post(event: object) -> None:
        posted.append(event)
        ended.set()

    loop: Any = SimpleNamespace(post=post, watch=lambda *of: None, unwatch=lambda *of: None)
    connections = Connections(service, listener, loop, lambda line, quiet: None)
    asking: Any = SimpleNamespace(keeps=True, busy=False, who="uid 0")
    connections.carry_out(asking, Request("POST", PREFIX + method, b"{}", keeps=True, chunks=False, zipped=False))
    assert asking.busy
    assert reading.wait(BOUND_S)
    assert not posted
    answers.set()
    assert ended.wait(BOUND_S)
