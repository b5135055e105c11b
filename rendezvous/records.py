"""The records that nodes exchange through a store: frozen values, nothing else.

Each node publishes one `NodeRecord`, which only it writes. The coordinator announces `Round`s, numbered by `version`,
which only it writes. Everything a node or the coordinator decides follows from these, so losing, repeating or delaying
a notification changes nothing but latency. The record of the job itself is in `codec/job.py`.
"""

from __future__ import annotations

from enum import Enum

from ..proto.frozen import dataclass, replace
from .agreements import Agreement, Answer, Request
from .failures import Ending, WorkerFailure


class NodeState(Enum):
    """State of a node, of the round that `NodeRecord.round` names."""

    __hash__ = object.__hash__

    WAITING = "waiting"
    """No worker of any round runs here; the node asks for a place in the next round."""
    WORKING = "working"
    """Its workers of `round` have been started."""
    BROKEN = "broken"
    """One of its workers of `round` failed; it stops the others and rejoins afterwards."""
    STOPPING = "stopping"
    """`round` ended for a reason elsewhere; it stops its workers and rejoins afterwards."""
    FINISHED = "finished"
    """All its workers of `round` exited 0; it waits in the finalisation barrier."""
    LEAVING = "leaving"
    """It leaves the job: it stops its workers and will not come back."""
    ENDED = "ended"
    """Its agent and its workers are gone for good. Its last record."""


class RoundPhase(Enum):
    """Where a round stands, as the coordinator announces it."""

    __hash__ = object.__hash__

    GATHERING = "gathering"
    """Waiting for nodes."""
    LAST_CALL = "last call"
    """Enough nodes are here; waiting a little for more."""
    RUNNING = "running"
    """Membership and ranks are fixed; workers run."""
    OVER = "over"
    """Ended; members stop their workers and come back."""
    CLOSED = "closed"
    """The rendezvous is closed: no further round, ever. `Round.outcome` says how the job ended."""


class Outcome(Enum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    """Every worker of every remaining member exited 0."""
    FAILED = "failed"
    """A worker failed and could not be restarted."""
    JOIN_TIMED_OUT = "join timed out"
    """Fewer than `min_nodes` joined (or came back) within the join timeout."""
    UNFINISHED = "unfinished"
    """The finalisation barrier ran out while some nodes were still working."""
    ABANDONED = "abandoned"
    """Every node that could have gone on has left."""
    MISCONFIGURED = "misconfigured"
    """Nodes were started with flags that exclude each other, such as one --node-rank twice."""
    KILLED = "killed"
    """Somebody used the kill switch."""
    PREEMPTED = "preempted"
    """A worker asked for the end: the job is to be started again, and goes on then."""


OUTVOTING_BEATS = 5
"""A lease is as long as so many heartbeats, or longer, where more than half of the voters replace a silent host."""


class Survivor(Enum):
    """Who replaces a host of the c10d store that is silent for a lease, as without power."""

    __hash__ = object.__hash__

    WAIT = "wait"
    """Nobody: the others wait for it."""
    MAJORITY = "majority"
    """More than half of those that may vote."""
    GO = "go"
    """The same; and of a round of two nodes the other one, at the user's risk."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What must be the same on all nodes of a job. What may differ is no part of it: number of workers, rank, role,
    addresses, budget, logs, times."""

    run_id: str = "none"
    command: tuple[str, ...] = ()
    """Script, module or function, and its arguments; the interpreter may differ."""
    min_nodes: int = 1
    max_nodes: int = 1
    nproc: str = "number"
    """How workers are counted: "number", whichever; or a name such as "gpu"."""
    lease_s: float = 0.0
    """On stores that elect, where it decides when workers end that are cut off; 0: it may differ."""
    survivor: Survivor = Survivor.WAIT


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node's record. Written by that node only."""

    node: str
    """Identity of this agent process; unique within the job, never reused."""
    name: str
    """The same for people: host and agent pid."""
    state: NodeState
    seq: int
    """Counts this node's records; a reader ignores one that is not newer than what it holds."""
    round: int = 0
    """The round that this record is about; 0 before the first. WAITING: every worker up to it is gone."""
    nproc: int = 1
    """Workers it would start (local world size)."""
    role: str = "default"
    addr: str = ""
    """Address at which others reach this node, offered as MASTER_ADDR."""
    port: int = 0
    """Port held free here, offered as MASTER_PORT of the next round."""
    preferred_rank: int | None = None
    """Group rank asked for with --node-rank, if any."""
    restarts_left: int = 0
    """What is left of this node's own budget."""
    failure: WorkerFailure | None = None
    """With BROKEN: what failed."""
    deaths: tuple[WorkerFailure, ...] = ()
    """How workers of `round` ended so far, in that order, with `failure` and with those that were stopped."""
    all_exits_reported: bool = False
    """No worker of `round` runs here any more, and `deaths` lists all: so while WAITING, and in a pause."""
    charge_local: bool = False
    """It counts each failure of its own workers, whichever node caused it (--charge local)."""
    finished: bool = False
    """Its workers all exited 0, whatever happened later."""
    because: str = ""
    """Why, in one sentence for people."""
    min_nodes: int = 1
    max_nodes: int = 1
    grace_s: float = 0.0
    """What its workers get to stop before SIGKILL (--shutdown-timeout): so long may its answer to the end of a round
    take."""
    requests: tuple[Request, ...] = ()
    """What it asks all ranks to do; the oldest first, at most `MAX_REQUESTS`."""
    answer: Answer | None = None
    """To the newest agreement of `round`."""
    control: str = ""
    """HOST:PORT of its control service on TCP (--control-address); empty: none."""
    witness_port: int = 0
    """Where, at `addr`, it answers whether workers of a round may run on; 0: nowhere."""
    fenced_round: int = 0
    """It lets no worker run on of this round, nor of any before."""
    permitted_round: int = 0
    """The newest round whose workers it has let run on, as a witness; 0: none, or so long ago that they have ended."""
    alone_s: float = 0.0
    """How long its workers run on without the store at most, if the witnesses of their round let them."""
    presence: str = ""
    """By this name agents on its host see whether a process of it lives; empty: they cannot."""
    ended_here: tuple[str, ...] = ()
    """Presences of agents of which no process is left, as this node sees on its host; at most `MAX_ENDED_HERE`."""
    store: str = ""
    """HOST:PORT where it could serve the job's store, should its host die; empty: nowhere."""
    vote_port: int = 0
    """Where, at `addr`, it is asked for its vote for the next host of the store; 0: nowhere."""


MAX_ENDED_HERE = 256


@dataclass(frozen=True, slots=True)
class Witness:
    """Whom members of a round ask while the store does not answer: whether their workers may run on, or, where another
    node may host the store next, for a vote."""

    node: str
    addr: str
    port: int
    store: str = ""
    """As `NodeRecord.store`."""


@dataclass(frozen=True, slots=True)
class Member:
    """One node's place in a round. Ranks of its workers are `rank_offset .. rank_offset + nproc - 1`."""

    node: str
    name: str
    group_rank: int
    rank_offset: int
    nproc: int
    role: str = "default"
    role_offset: int = 0
    """Rank of its first worker among the workers of its role."""
    control: str = ""
    """As `NodeRecord.control`."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """A round of more members than an announcement lists: a node holds those of one page, its own place among them."""

    nodes: int
    """How many members there are."""
    workers: int
    """How many workers they have together."""
    pages: int
    """On how many pages they are."""
    digest: str
    """Of all pages, in hexadecimal; names them in the store."""
    roles: tuple[tuple[str, int], ...] = ()
    """How many workers of the whole round have each role that is on this node's page."""


@dataclass(frozen=True, slots=True)
class Round:
    """An announcement of the coordinator: where the job stands. Each change is a new one with the next `version`."""

    version: int
    epoch: int
    """Which coordinator; a later one's is higher."""
    number: int
    """The round; starts at 1, never goes back. While GATHERING or LAST_CALL: the round to come."""
    phase: RoundPhase
    because: str
    members: tuple[Member, ...] = ()
    """By group rank. Of the running round, or the last one, whose members keep their ranks in the round to come. With
    `crowd`, some of them."""
    master_addr: str = ""
    master_port: int = 0
    ended: Ending | None = None
    """How the last ended round ended; its charge is settled once `number` is greater than `ended.round`."""
    unsettled: Ending | None = None
    """While OVER: how this round ended, as long as that is not final. For a coordinator that takes over; it charges no
    node, and `ended` is still that of the round before."""
    restarts: int = 0
    """Rounds ended by a failure so far, over the whole job."""
    finishing: bool = False
    """A node has finished: the finalisation barrier runs."""
    hold: bool = False
    """With OVER: the failure seen looks like an echo. Members wait a moment before they stop their workers, so that the
    cause can show itself."""
    outcome: Outcome | None = None
    """With CLOSED."""
    agreement: Agreement | None = None
    """What the ranks of this round do at one boundary: the newest of the round, also when it is over."""
    served: tuple[tuple[str, int], ...] = ()
    """Requests, by node and number, that are done or given up and that records still hold; at most `MAX_SERVED`."""
    crowd: Crowd | None = None
    """Where the members are, if they are too many for an announcement. None: `members` has all."""
    witnesses: tuple[Witness, ...] = ()
    """On stores that elect: the first members of the round."""
    coordinator: str = ""
    """On stores that elect: name of the node that announces this; empty before that is known."""
    voters: tuple[Witness, ...] = ()
    """Where another node may host the store next: who elects it (docs/adr/0049)."""
    before: tuple[str, ...] = ()
    """Voters of the round before that are members of this one."""
    host: Witness | None = None
    """Where another node may host the store next: the node that does now."""
    finished: tuple[str, ...] = ()
    """There also: members whose workers all exited 0, for a host that follows one of them."""

    def differs_in_text_only(self, other: Round) -> bool:
        """Whether only the sentence differs from `other`: for which nodes all wait, and for how long yet."""
        return self.because != other.because and replace(self, version=other.version, because=other.because) == other

    @property
    def nodes(self) -> int:
        """How many members there are."""
        return len(self.members) if self.crowd is None else self.crowd.nodes

    @property
    def world_size(self) -> int:
        return sum(member.nproc for member in self.members) if self.crowd is None else self.crowd.workers

    @property
    def begun(self) -> bool:
        """Whether nodes have places in this round: not before it begins, nor once the rendezvous is closed."""
        return self.phase in (RoundPhase.RUNNING, RoundPhase.OVER)

    @property
    def placed(self) -> tuple[Member, ...]:
        """Nodes with a place in this round; empty before it begins, and once the rendezvous is closed."""
        return self.members if self.begun else ()

    def member(self, node: str) -> Member | None:
        return next((member for member in self.members if member.node == node), None)

    def role_world_size(self, role: str) -> int:
        """How many workers have this role; with `crowd`, a role of this node's page."""
        if self.crowd is not None:
            return dict(self.crowd.roles).get(role, 0)
        return sum(member.nproc for member in self.members if member.role == role)
