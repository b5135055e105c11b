"""What the history of a real job proves, in the shape of the simulated world that the checkers take."""

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
from simulation.world.workers import Habit

from .plan import HOST, LEASE_S, Plan


@dataclass
class SeenLink:
    """A node's link to the store."""

    opened: bool = False
    up: bool = True
    away_since: float | None = None
    back_at: float | None = None
    last_record_written_at: float | None = None
    stopped: bool = False
    """The node was killed or frozen."""

    def silent_s(self) -> float:
        """Unlimited if the node was killed or frozen, 0 otherwise."""
        return float("inf") if self.stopped else 0.0


@dataclass
class SeenNursery:
    """The orders that the node's workers got."""

    live: dict[int, object] = field(default_factory=dict)
    stuck: bool = False
    stuck_until: float = 0.0
    busy: bool = False
    round: int = 0
    clean: dict[int, int] = field(default_factory=dict)
    storeless: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    fenced_rounds: set[int] = field(default_factory=set)
    codes: dict[int, list[int]] = field(default_factory=dict)
    """Per round: exit codes other than 0 with which workers were ordered to exit."""
    habit: Habit = field(default_factory=lambda: Habit(plain=True))
    ranks: None = None
    """These workers come to no step boundaries."""


@dataclass
class SeenNode:
    """One agent, as far as the history shows it."""

    name: str
    nproc: int
    rules: Rules
    ident: str = ""
    killed: bool = False
    frozen: bool = False
    was_frozen: bool = False
    thawed_at: float = 0.0
    gone_at: float = float("inf")
    joined_at: float = 0.0
    came_at: float = 0.0
    """When it joined for the first time; 0: it has not joined."""
    state: Node = field(default_factory=Node)
    verdict: Verdict | None = None
    link: SeenLink = field(default_factory=SeenLink)
    nursery: SeenNursery = field(default_factory=SeenNursery)
    place_fails: bool = False
    stalled: bool = False
    attends: bool = True
    """No fault of the campaign stops one thread of an agent alone."""
    skew_s: float = 0.0
    places: dict[int, tuple[Member, ...]] = field(default_factory=dict)
    """Per round: its members, as announced to this node."""

    now: float = 0.0

    def clock(self) -> float:
        """One clock for all nodes."""
        return self.now

    @property
    def host(self) -> bool:
        return self.name == HOST

    @property
    def done(self) -> bool:
        return self.killed or self.verdict is not None


class SeenWorld:
    """Takes the place of the simulated world in the checkers."""

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
        self.fences = True
        self.shared_store = object()
        """Real agents have drivers."""
        self.leader: SeenNode | None = None
        """A coordinator of an earlier run of the same command could only be found there; here is one run."""
        self.rendezvous: Rendezvous | None = None


def members_of(line: dict[str, Any]) -> tuple[Member, ...]:
    return tuple(
        Member(each["node"], each["name"], each["group_rank"], each["rank_offset"], each["nproc"])
        for each in line["members"]
    )


def ending_of(line: dict[str, Any] | None) -> Ending | None:
    return Ending(line["round"], EndKind(line["kind"]), line["because"], line["charged"]) if line else None


def master_of(shown: str | None) -> tuple[str, int]:
    address, _, port = (shown or ":0").rpartition(":")
    return address, int(port)
