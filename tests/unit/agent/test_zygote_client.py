"""The nursery's side of the zygote, in this process."""

from __future__ import annotations

import select
from types import SimpleNamespace

import pytest

from elastic_agent.agent.nursery import zygote_client
from elastic_agent.agent.nursery.spawn import Launch
from elastic_agent.agent.nursery.zygote_client import ZygoteClient

FIELDS = [b"slow", b"RANK", b"/", b"3", b"python", b"-u", b"train.py"]


def test_one_round_waits_for_imports_that_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers are started plainly then, as a line says; those of the next rounds do not wait again."""
    started: list[str] = []
    reported: list[str] = []
    spawner = SimpleNamespace(
        start=lambda launch: started.append(launch.key),
        report=lambda *words: reported.append(" ".join(words)),
        poll=select.poll(),
    )
    monkeypatch.setattr(zygote_client, "ZYGOTE_WAIT_S", 0.0)
    monkeypatch.setattr(ZygoteClient, "open", lambda client: setattr(client, "socket", object()))
    client = ZygoteClient(spawner, FIELDS)  # type: ignore[arg-type]
    launch = Launch(FIELDS[2:], (-1, -1))
    launch.key = "0"
    assert client.request(launch)
    assert started == []
    assert client.wait_ms() is None
    assert started == ["0"]
    assert reported == [
        "preload_warning the imports are not over after 0 s, so workers are started plainly until they are"
    ]
    assert not client.request(launch), "the next round waits as long"
