"""A short run of `make storms`: after ten signals at random times agents exit as documented."""

from __future__ import annotations

from campaigns import storms


def test_an_agent_exits_as_documented_after_signals_in_any_phase() -> None:
    """One of each kind of script, alone and on two nodes: the status, the last line, and no process left."""
    statuses, wrong = storms.campaign(seed=0, first=0, count=2 * len(storms.SCRIPTS))
    assert wrong == []
    assert sum(statuses.values()) == 3 * len(storms.SCRIPTS)
