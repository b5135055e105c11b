"""What metrics say of watches."""

from __future__ import annotations

from pathlib import Path

from elastic_agent.control.decisions.watches import Change, WatchState
from elastic_agent.control.in_agent.watching import Watching
from elastic_agent.control.service.messages import Goodput
from elastic_agent.control.service.metrics import BLIND, FIRING, Counted, text_of, time_samples
from elastic_agent.control.stream import Alarm, Entry


def test_metrics_say_which_watch_fires_and_which_cannot_be_read() -> None:
    """One that fired goes on firing while it cannot be read, and one that never did either has no sample."""
    counted = Counted()
    expected = {
        Change.FIRED: (True, None),
        Change.BLIND: (True, True),
        Change.READABLE: (True, False),
        Change.AGAIN: (True, False),
        Change.CLEARED: (False, False),
    }
    for change, (fires, blind) in expected.items():
        counted.recorded(Entry(1, 0.0, 0.0, Alarm(0.0, "disk of /data", change.value, "full"), "a", ""))
        lines = text_of(time_samples(counted, Goodput("node0"), None)).decode().splitlines()
        assert [line for line in lines if line.startswith("elastic_agent_watch_")] == [
            f'elastic_agent_watch_{name}{{watch="disk of /data"}} {int(holds)}'
            for name, holds in (("firing", fires), ("blind", blind))
            if holds is not None
        ]
    assert counted.alarms == 1


def test_a_watch_that_is_watched_no_more_has_no_sample(tmp_path: Path) -> None:
    """Set anew, an agent says so of those that had fired or could not be read, and of no other."""
    table = tmp_path / "w.toml"
    table.write_text("".join(f'[[watch]]\nwhat = "disk"\npath = "/{name}"\nthreshold = "9 % used"\n' for name in "abc"))
    counted = Counted()

    def alarmed(watch: str, change: str, because: str) -> None:
        counted.recorded(Entry(1, 0.0, 0.0, Alarm(0.0, watch, change, because), "a", ""))

    watching = Watching(str(table), (), "job1", lambda line, routine: None, alarmed)
    try:
        fired, blind, _ = watching._runner._running
        fired.state, blind.state = WatchState(reported_at=1.0), WatchState(blind=True)
        alarmed("disk /a", "fired", "full")
        alarmed("disk /b", "blind", "gone")
        assert (counted.firing, counted.blind) == ({"disk /a": True}, {"disk /b": True})
        watching.set("", "")
        assert (counted.firing, counted.blind, counted.alarms) == ({}, {}, 1)
    finally:
        watching.ended(None)


def test_each_change_of_a_watch_is_known_to_metrics() -> None:
    """A new one must say whether the watch fires, or can be read."""
    assert set(FIRING) | set(BLIND) == {change.value for change in Change}
