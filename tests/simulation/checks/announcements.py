"""What nodes hear of the coordinator and of the store, held against what was said, when, and what came back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_agent.agent.lifecycle.state import Node
from elastic_agent.rendezvous.records import Round

from .invariants import ANNOUNCED, ENDS_PROMPTLY, FORWARD, NEWEST, OVERTAKEN

if TYPE_CHECKING:
    from ..stores.driver_link import DriverLink
    from ..world.node import SimNode
    from .checkers import Checkers

READ_S = 12.0
"""From an announcement until nobody hears the one before any more: calls that break first, and one that is answered."""
QUEUED_S = 1.0
"""What a thread of the driver tells is heard by the agent sooner."""


class Announcements:
    """What the coordinator said, and what of it reached whom."""

    def __init__(self, truth: Checkers) -> None:
        self._truth = truth
        self.said: dict[int, Round] = {}
        """What the coordinator announced, by version."""
        self._said_at: dict[int, float] = {}
        self._told: set[tuple[str, int]] = set()
        """Which node heard how which round ended, for good."""
        self._missed: set[tuple[str, int]] = set()
        """Which node can no longer hear so: it was deaf until the next one had ended."""

    def announced(self, word: Round) -> None:
        follows = self._truth.cleared or len(self.said) + 1 == word.version
        self._truth.need(follows, ANNOUNCED, f"version {word.version} follows {len(self.said)}")
        self.said[word.version] = word
        self._said_at[word.version] = self._truth.world.now
        if self._truth.cleared:  # versions may begin anew, and what followed this one before does not
            self._said_at = {version: at for version, at in self._said_at.items() if version <= word.version}

    def heard(self, node: SimNode, before: Node, word: Round) -> None:
        """The agent takes a word of the coordinator."""
        need = self._truth.need
        need(self.said.get(word.version) == word, ANNOUNCED, lambda: f"{node.ident} heard {word}")
        held = before.latest_round.version if before.latest_round is not None else 0
        need(word.version > held, FORWARD, lambda: f"{node.ident} went from version {held} to {word.version}")
        next_at, fault_at = self._said_at.get(word.version + 1, float("inf")), self._truth.last_fault
        late_s = self._truth.world.now - max(next_at, fault_at)
        if fault_at <= node.joined_at:  # its own coming excuses nothing
            late_s = max(late_s, node.joined_at - next_at)
        need(late_s <= READ_S, NEWEST, f"{node.ident} heard version {word.version} {late_s:.1f} s after the next")

        if word.ended is not None and word.number > word.ended.round:
            ended = word.ended.round
            self._told.add((node.ident, ended))
            earlier = {(node.ident, number) for number in self._truth.endings if number < ended}
            self._missed |= earlier - self._told

    def charges(self, ident: str, before: int) -> list[int]:
        """The rounds before this one that were charged to a node, but for those of which it never heard the end."""
        charged = (e.round for e in self._truth.endings.values() if e.charged == ident and e.round < before)
        return sorted(number for number in charged if (ident, number) not in self._missed)

    def taken(self, link: DriverLink, word: Round) -> None:
        """A word reaches the agent that others may have overtaken in its queue."""
        newest = link.newest
        self._truth.need(word.version >= newest, OVERTAKEN, f"{link.node.ident} takes {word.version}, told {newest}")

    def concluded(self, node: SimNode) -> None:
        """An agent ends; one that waits for nobody else had no reason to linger."""
        said_at = node.link.last_record_written_at
        if said_at is None or node.host or node.state.leading:
            return
        lingered_s = self._truth.world.now - max(said_at, self._truth.last_fault)
        self._truth.need(
            lingered_s <= QUEUED_S, ENDS_PROMPTLY, f"{node.ident} ends {lingered_s:.1f} s after its last word"
        )
