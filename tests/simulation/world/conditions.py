"""What makes a job harder beside its faults: failures that echo, bytes that come late, members on pages."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass
class Conditions:
    """Set when a world is built, by its schedule."""

    echo_chance: float = 0.0
    """How likely the death of a worker makes its peers on another node fail, within `echo_s`."""
    echo_s: float = 2.0
    echoed: set[int] = field(default_factory=set)
    late_bytes: random.Random | None = None
    """Decides when bytes of abandoned connections arrive; None: they never do."""
    late_records: int = 6
    """So many connections more may break with a node's record on its way."""
    reads_first: bool = False
    """On etcd: who stands for coordinator does so by the production election."""
    page_members: int = 0
    """Where it is not 0, the members of each larger round are on pages of so many; drivers only."""
    hosts: int = 0
    """Agents run on so many hosts, by the order in which they join; 0: each on its own."""
