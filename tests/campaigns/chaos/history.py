"""What the history of a real job proves, in the shape of the simulated world that the checkers know."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from elastic_agent.agent.lifecycle.restart_policy import Policy
from elastic_agent.agent.lifecycle.state import Node, Rules, Verdict
from elastic_agent.rendezvous.coordinator.state import Rendezvous
from elastic_agent.rendezvous.failures import Ending, EndKind
from elastic_agent.rendezvous.records import Member
from simulation.checks.coverage import Reached
from simulation.world.job import Job

from .plan import HOST, LEASE_S, Plan


@dataclass
class SeenLink:
    """Whether the node reached the store."""

    opened: bool = False
    up: bool = True
    away_since: float | None = None
    back_at: float | None = None
    last_record_written_at: float | None = None
    deaf: bool = False
    """The node was killed or frozen."""

    def silent_s(self) -> float:
        """As long as you like if it was made to be silent, and not at all otherwise."""
        return float("inf") if self.deaf else 0.0


@dataclass
class SeenNursery:
    """What the node's workers were told to do."""

    live: dict[int, object] = field(default_factory=dict)
    stuck: bool = False
    stuck_until: float = 0.0
    busy: bool = False
    round: int = 0
    clean: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    codes: dict[int, list[int]] = field(default_factory=dict)
    """Per round: exit codes other than 0 that workers were told to end with."""


@dataclass
class SeenNode:
    """One agent, as far as the history tells."""

    name: str
    nproc: int
    rules: Rules
    ident: str = ""
    killed: bool = False
    frozen: bool = False
    was_frozen: bool = False
    thawed_at: float = 0.0
    joined_at: float = 0.0
    came_at: float = 0.0
    """When it joined for the first time; 0: not yet."""
    state: Node = field(default_factory=Node)
    verdict: Verdict | None = None
    link: SeenLink = field(default_factory=SeenLink)
    nursery: SeenNursery = field(default_factory=SeenNursery)
    place_fails: bool = False
    skew_s: float = 0.0
    places: dict[int, tuple[Member, ...]] = field(default_factory=dict)
    """Per round: its members, as this node heard of them."""

    now: float = 0.0

    def clock(self) -> float:
        """All nodes have one."""
        return self.now

    @property
    def host(self) -> bool:
        return self.name == HOST

    @property
    def done(self) -> bool:
        return self.killed or self.verdict is not None


class History:
    """Stands in for the simulated world."""

    def __init__(self, plan: Plan) -> None:
        self.job = Job(
            min_nodes=plan.min_nodes,
            max_nodes=plan.max_nodes,
            restarts=Policy(max_restarts=plan.max_restarts),
            join_timeout_s=plan.join_timeout_s,
            store_grace_s=plan.store_grace_s,
            exit_barrier_s=plan.barrier_s,
            lease_s=LEASE_S,
        )
        self.nodes: dict[str, SeenNode] = {}
        """By identity."""
        self.now = 0.0
        self.reached = Reached()
        self.store = SimpleNamespace(spoiled=False)
        self.elects = False
        self.rendezvous: Rendezvous | None = None


def members_of(line: dict[str, Any]) -> tuple[Member, ...]:
    return tuple(
        Member(each["node"], each["name"], each["group_rank"], each["rank_offset"], each["nproc"])
        for each in line["members"]
    )


def ending_of(line: dict[str, Any] | None) -> Ending | None:
    return Ending(line["round"], EndKind(line["kind"]), line["because"], line["charged"]) if line else None


def master_of(told: str | None) -> tuple[str, int]:
    address, _, port = (told or ":0").rpartition(":")
    return address, int(port)
