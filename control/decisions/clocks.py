"""How far the clocks of the nodes are apart. Pure. Nothing but a warning follows from it."""

from __future__ import annotations

from collections.abc import Mapping

from ...rendezvous.text import duration


def skew(ahead_s: Mapping[str, float]) -> tuple[float, str]:
    """(how far the clock that is furthest off is off, a sentence that names its node). `ahead_s`: by node, how far its
    clock is ahead of some clock, the same for all; two nodes or more."""
    ordered = sorted(ahead_s.values())
    half = len(ordered) // 2
    usual_s = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    node = max(ahead_s, key=lambda name: abs(ahead_s[name] - usual_s))
    if len(ahead_s) == 2:
        other = next(name for name in ahead_s if name != node)
        off_s, of = ahead_s[node] - ahead_s[other], f"that of {other}"
    else:
        off_s, of = ahead_s[node] - usual_s, f"the median of {len(ahead_s)} nodes"
    return abs(off_s), f"the clock of {node} is {duration(abs(off_s))} {'behind' if off_s < 0 else 'ahead of'} {of}"
