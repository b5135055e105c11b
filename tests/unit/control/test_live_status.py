"""A live screen of `elasticctl` ends with the agent, whatever its last call meets. The agent is a stand-in."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from elastic_agent.control.ctl import call, cli, find, printing, screen, views
from elastic_agent.control.ctl.call import AgentUnreachable
from elastic_agent.control.ctl.find import Agent

EVENT, END = b"3\r\n{}\n\r\n", b"0\r\n\r\n"
"""Chunks of a stream: one event, and its end."""


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of the only agent here; its file is there all the time."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "control.sock"))
        made.listen()
        only = Agent(made.getsockname(), {"runId": "job1", "coordinating": True, "hosting": True})
        monkeypatch.setattr(find, "agents", lambda address="": ([only], []))
        yield made


def live(
    listener: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    last: Callable[[socket.socket], None],
    output: str = "json",
) -> Result:
    """A live screen that is drawn once; its next call is reset after `last` of the stream of events."""
    streams: list[socket.socket] = []

    def asked(*_: object, **__: object) -> Any:
        if not streams:
            streams.append(listener.accept()[0])
            streams[0].recv(1 << 16)  # unread, it would make an end a reset
            streams[0].sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + EVENT)
            return {"checkpoints": ""}, [], [], []
        last(streams[0])
        raise AgentUnreachable(f"{listener.getsockname()}: Connection reset by peer")

    monkeypatch.setattr(views, "job_and_workers", asked)
    try:
        return CliRunner().invoke(cli.elasticctl, ["status", "-w", "-o", output])
    finally:
        for each in streams:
            each.close()


def test_an_agent_that_ends_while_it_is_asked_is_no_error(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket's file goes last: what tells is that its stream of events ends."""
    shown = live(listener, monkeypatch, lambda stream: stream.sendall(EVENT + END))
    assert shown.exception is None
    assert shown.exit_code == 0


def test_an_agent_that_is_killed_while_it_is_asked_is_no_error(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = live(listener, monkeypatch, lambda stream: stream.close())
    assert shown.exception is None
    assert shown.exit_code == 0


def test_an_agent_that_goes_on_and_answers_no_call_is_an_error(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "ANSWER_S", 0.05)
    shown = live(listener, monkeypatch, lambda stream: None)
    assert isinstance(shown.exception, AgentUnreachable)
    assert "reset by peer" in str(shown.exception)


def test_the_last_screen_stays_when_the_agent_has_ended(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cleared only for the next one."""
    monkeypatch.setattr(printing, "is_screen", lambda: True)
    monkeypatch.setattr("click.clear", lambda: click.echo("cleared"))
    monkeypatch.setattr(screen, "screen", lambda *of, **more: [screen.Line("drawn")])
    shown = live(listener, monkeypatch, lambda stream: stream.sendall(EVENT + END), "wide")
    assert shown.output == "cleared\ndrawn\n"
