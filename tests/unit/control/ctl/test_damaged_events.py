"""Files of events in which a value is of another kind than an agent writes, as of another program, or is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_agent.control.ctl import event_sources
from elastic_agent.control.ctl.story import all_lines, as_message, stories_of

HEAD = {"at_s": 1.0, "time_s": 1001.0, "node": "a:7", "form": 2}
MEMBERS = [{"node": "a1", "name": "a:7", "group_rank": 0, "rank_offset": 0, "nproc": 2}]
ENDED = {"round": 1, "kind": "failure", "because": "rank 1 failed", "charged": "a1"}
EVENTS: list[dict[str, Any]] = [
    {**HEAD, "what": "announced", "id": "n/1", "cause": "", "version": 1, "number": 1, "phase": "running",
     "because": "every place is taken", "members": MEMBERS, "ended": None, "outcome": None},
    {**HEAD, "what": "event", "id": "a/2", "cause": "n/1", "phase": "working", "round": 1, "because": "round 1 begins",
     "happened": "RoundSeen", "members": MEMBERS, "restarts_used": 0, "ended": None},
    {**HEAD, "what": "stage", "id": "a/3", "cause": "a/2", "stage": "started", "round": 1, "took_s": 0.1},
    {**HEAD, "what": "announced", "id": "n/2", "cause": "a/3", "version": 2, "number": 2, "phase": "running",
     "because": "every place is taken", "members": MEMBERS, "ended": ENDED, "outcome": None},
    {**HEAD, "what": "goodput", "id": "", "cause": "", "wall_s": 2.0, "workers": 2, "share": 0.5, "measured": True,
     "buckets": {"useful steps": 1.0, "starting": 1.0}, "ranks": [],
     "lost": [{"round": 1, "kind": "failure", "node": "a:7", "length_s": 1.0, "because": "rank 1 failed"}]},
    {**HEAD, "what": "concluded", "id": "a/4", "cause": "", "exit_code": 0, "because": "all finished",
     "outcome": "succeeded"},
]  # fmt: skip
MISSING = object()
OTHERS: tuple[object, ...] = (None, True, -1.5, float("nan"), "x", [1], {"a": 1}, [{}], MISSING)


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Each value within this one, by the keys that lead there."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        yield (key,)
        yield from ((key, *rest) for rest in places(each))


def damaged(number: int, place: tuple[Any, ...], value: object) -> list[dict[str, Any]]:
    """The events, of which one has this value there."""
    made: list[dict[str, Any]] = json.loads(json.dumps(EVENTS))
    within: Any = made[number]
    for key in place[:-1]:
        within = within[key]
    if value is MISSING:
        del within[place[-1]]
    else:
        within[place[-1]] = value
    return made


def told(path: Path, page: Path) -> list[str]:
    """What `explain` says of these events; writes their page, too."""
    found = event_sources.events([str(path)], list)
    stories = stories_of(found)
    json.dumps(list(map(as_message, stories)))
    event_sources.write_report(str(page), found, [str(path)])
    return list(all_lines(stories))


@pytest.mark.parametrize("number", range(len(EVENTS)), ids=[event["id"] or event["what"] for event in EVENTS])
def test_an_event_with_any_other_value_is_told_or_left_out_in_a_line(
    tmp_path: Path, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `elasticctl explain` and `report`: neither ends with a traceback, whichever value of whichever event it is."""
    path, page = tmp_path / "events", tmp_path / "page.html"
    for place in places(EVENTS[number]):
        for value in OTHERS:
            path.write_text("".join(json.dumps(event) + "\n" for event in damaged(number, place, value)))
            assert told(path, page), (place, value)
            said = capsys.readouterr().err
            assert said in ("", f"{path}: line {number + 1} left out: no event of an agent, or damaged\n")


def test_events_as_agents_write_them_are_all_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """None of them is left out."""
    path = tmp_path / "events"
    path.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    assert len(event_sources.events([str(path)], list)) == len(EVENTS)
    assert capsys.readouterr().err == ""
