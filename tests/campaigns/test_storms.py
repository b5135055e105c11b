"""A short run of `make storms`: ten signals at random times end in the documented way."""

from __future__ import annotations

from campaigns import storms


def test_a_storm_of_signals_in_any_phase_ends_in_the_documented_way() -> None:
    """One of each kind of script, alone and on two nodes: the status, the last line, and nothing left."""
    statuses, wrong = storms.campaign(seed=0, first=0, count=2 * len(storms.SCRIPTS))
    assert wrong == []
    assert sum(statuses.values()) == 3 * len(storms.SCRIPTS)
