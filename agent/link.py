"""The agent's link to the other nodes, and another one where its job goes on elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ..rendezvous.coordinator import events as coordination
from ..rendezvous.driver.events import Post
from ..rendezvous.records import Member, NodeRecord, Round
from ..rendezvous.shared_values import SharedValues
from .solo import Solo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rendezvous.driver.fencing import Fencing
    from ..rendezvous.driver.threads import OwnHeartbeats


class Link(Protocol):
    """The connection to the other nodes: `rendezvous.driver.driver.Driver` on a store, or `Solo`."""

    newest: int
    """Version of the newest announcement received; 0 before the first."""
    fencing: Fencing | None
    """On a store that elects: until when workers may run."""
    held: int
    """A descriptor that the nursery holds as long as a worker may run; -1: none."""
    own_beats: OwnHeartbeats | None
    """How the store answers this node's heartbeats; None: there is no store, or it is not open yet."""

    def open(self) -> None: ...
    def publish(self, record: NodeRecord) -> None: ...
    def carry_out(self, effect: coordination.StoreEffect) -> None: ...
    def members(self, of: Round) -> tuple[Member, ...]: ...
    def values(self) -> SharedValues | None: ...
    def resign(self) -> None: ...
    def close(self) -> None: ...


MakeLink = Callable[[str, str, Post], Link]
"""Makes the link from this node's identity, its name for people, and what takes the link's events."""


class Found(NamedTuple):
    """What a link has posted, and which link."""

    link: int
    event: object


class Linking:
    """Makes the links of one agent, of which the last one counts."""

    def __init__(self, make_link: MakeLink | None, post: Callable[[object], None], local_addr: str | None) -> None:
        """`make_link`: None for a job on one host. `post` gets what a link finds, as Found."""
        self._make_link, self._post, self._alone = make_link, post, local_addr or "127.0.0.1"
        self._made = 0

    def make(self, node: str, name: str) -> Link | Solo:
        """Another link. What one before it finds yet is dropped."""
        self._made += 1
        number = self._made

        def post(event: object) -> None:
            self._post(Found(number, event))

        return self._make_link(node, name, post) if self._make_link else Solo(post, self._alone)

    def is_old(self, found: Found) -> bool:
        """Whether that link is not the last one."""
        return found.link != self._made
