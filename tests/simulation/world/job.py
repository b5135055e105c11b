"""What all nodes of a simulated job agree on, and how long things take in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from elastic_agent.agent.lifecycle.restart_policy import Policy
from elastic_agent.agent.rules import GIVES_UP_S


@dataclass(frozen=True)
class Job:
    """What all nodes of a job agree on. Times in seconds."""

    min_nodes: int = 1
    max_nodes: int = 1
    restarts: Policy = field(default_factory=Policy)
    grace_s: float = 30.0
    leftover_s: float = 4.0
    join_timeout_s: float = 600.0
    last_call_timeout_s: float = 30.0
    quiet_s: float = 3.0
    beat_s: float = 1.0
    lease_s: float = 5.0
    store_grace_s: float = 30.0
    exit_barrier_s: float = 300.0
    connect_timeout_s: float = 60.0
    static: bool = False
    settle_s: float = 0.0
    """As --settle-timeout."""

    @property
    def held_s(self) -> float:
        """So long a node that sends nothing holds its lease in etcd, with the time that confirms its end."""
        return 0.75 * self.lease_s

    @property
    def alone_s(self) -> float:
        """As `agent.rules.alone_s`."""
        return self.store_grace_s + self.grace_s + GIVES_UP_S


class Delays:
    """How long things take, in seconds: always the same, as stories need it."""

    network_s = 0.001
    """The most that a message takes to the store."""

    def local(self) -> float:
        return 0.001

    def network(self) -> float:
        return self.network_s

    def dying(self) -> float:
        return 0.01
