"""What happens to a node of a store that another node hosts, and what it does: two closed unions of frozen values."""

from __future__ import annotations

from ...proto.frozen import dataclass

Position = tuple[int, int]
"""Which of two announcements is the newer one: the epoch in which it was announced, and its version."""


@dataclass(frozen=True, slots=True)
class Ballot:
    """With what a candidate asks for votes."""

    epoch: int
    """Of the term that it would begin."""
    candidate: str
    newest: Position
    """The newest announcement that it has read."""
    dead: frozenset[str]
    """Those of the voters and hosts that it knows of whose processes it knows to be dead; the last host is one of them.
    Not all that ever died: the question must fit into one line."""


@dataclass(frozen=True, slots=True)
class AnnouncementRead:
    """The newest announcement was read in the store that this node follows."""

    newest: Position
    voters: tuple[str, ...]
    """As `Electorate.voters`."""
    before: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeartbeatAcknowledged:
    """The store that this node follows has acknowledged a heartbeat."""

    epoch: int
    sent_at: float
    version: int
    """The newest announcement that there was, by the same answer."""


@dataclass(frozen=True, slots=True)
class ProcessDied:
    """The agent of a node is dead, by the word of the kernel that ran it: it closed a connection that this node had to
    it, and refuses new ones."""

    node: str
    left: bool = False
    """It said goodbye instead: it hosts and votes no more, and all that it has announced was read here."""


@dataclass(frozen=True, slots=True)
class VoteAsked:
    """A candidate asks this node. Answer with `Answer`."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class VoteAnswered:
    """A voter has answered the ballot of this epoch."""

    voter: str
    epoch: int
    yes: bool
    seen: int = 0
    """With a no: the epoch that the candidate has to exceed; 0: that alone does not get it the vote."""
    newest: Position = (0, 0)
    """With a no: the newest announcement that the voter has read."""
    silent_s: float = 0.0
    """With a yes: how long ago the voter sent the last heartbeat that its host has acknowledged."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The candidate will never host for this epoch."""

    candidate: str
    epoch: int


@dataclass(frozen=True, slots=True)
class HostFound:
    """This node is connected to the store that `host` serves for this epoch."""

    host: str
    epoch: int


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """A deadline requested with WakeAt has passed; early or stale ones are harmless."""


Event = (
    AnnouncementRead
    | HeartbeatAcknowledged
    | ProcessDied
    | VoteAsked
    | VoteAnswered
    | Withdrawn
    | HostFound
    | DeadlineReached
)


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask each of these for its vote; VoteAnswered follows for those that answer."""

    voters: tuple[str, ...]
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Answer:
    """To the ballot that was asked with VoteAsked. A yes is a promise, which must outlast nothing but this process."""

    ballot: Ballot
    yes: bool
    seen: int
    newest: Position
    """Both as in `VoteAnswered`."""
    because: str
    silent_s: float = 0.0
    """As in `VoteAnswered`."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Let each of these know that this node will never host for this epoch."""

    voters: tuple[str, ...]
    epoch: int


@dataclass(frozen=True, slots=True)
class Serve:
    """This node is elected: serve the store of this epoch, and coordinate."""

    epoch: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send DeadlineReached at this time (seconds on this host's clock)."""

    when: float


Effect = Ask | Answer | Withdraw | Serve | WakeAt
