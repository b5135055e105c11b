"""On a terminal: one line, in place, of what this node waits for, since when, and how long yet.

Shown only while no worker of this node runs: the terminal is theirs then.
"""

from __future__ import annotations

from collections.abc import Callable

from ...agent.agent import Agent, Known
from ...agent.lifecycle.state import Phase, Verdict
from ...agent.loop import Loop
from ...agent.report import AgentEvent
from ...rendezvous.coordinator.nodes import READY
from ...rendezvous.driver.events import LoopAsked
from ...rendezvous.records import Round
from ...rendezvous.text import count, duration

REDRAW_S = 1.0
QUIET = frozenset({Phase.CONNECTING, Phase.JOINING, Phase.FINISHED})
"""Phases in which a node waits, and no worker of it runs."""


class WaitingLine:
    """Beside an agent, whose loop draws it anew once a second while there is something to wait for."""

    def __init__(self, draw: Callable[[str], None]) -> None:
        """`draw` puts a line in place of the one before; an empty one takes it away."""
        self._draw = draw
        self._agent: Agent | None = None
        self._loop: Loop | None = None
        self._since_s: float | None = None
        """When this wait began; None: there is none."""
        self._planned = False

    def begin(self, agent: Agent, loop: Loop) -> None:
        """Draw from now on."""
        self._agent, self._loop = agent, loop

    def happened(self, what: AgentEvent | Round | Verdict) -> None:
        """A wait begins or is over."""
        if not isinstance(what, AgentEvent) or self._loop is None:
            return
        if what.phase not in QUIET:
            self._since_s = None
            self._draw("")
        elif self._since_s is None:
            self._since_s = what.at_s
            self._plan()

    def close(self) -> None:
        """Remove the line from the console."""
        self._loop = None
        self._draw("")

    def _plan(self) -> None:
        if self._loop is not None and not self._planned:
            self._planned = True
            self._loop.wake_at(self._loop.now() + REDRAW_S, LoopAsked(self._redraw))

    def _redraw(self) -> None:
        self._planned = False
        if self._loop is not None and self._agent is not None and self._since_s is not None:
            self._draw(waiting(self._agent.known(), self._since_s, self._loop.now()))
            self._plan()


def waiting(known: Known, since_s: float, now: float) -> str:
    """What this node waits for, in one line. Who else has come, and how long is left, only the coordinator knows."""
    node, state, rules = known.node, known.coordinator, known.rules
    leads = node.leading and state.leading
    so_far = f"{duration(now - since_s)} so far"
    if node.phase is Phase.FINISHED:
        if not leads or state.barrier_until is None:
            return f"all workers of this node are done; waiting for the other nodes, {so_far}"
        done = sum(1 for _, seen in state.seen_members() if seen.finished)
        left = duration(max(0.0, state.barrier_until - now))
        return f"{done} of {count(len(state.members), 'node')} finished, barrier {left} left"
    if node.phase is Phase.JOINING and leads:
        missing = rules.min_nodes - state.how_many(READY)
        left = duration(max(0.0, state.since + rules.join_timeout_s - now))
        if missing > 0:
            return f"waiting for {missing} more {'node' if missing == 1 else 'nodes'}, {so_far}, {left} left"
    return f"{node.because}; {so_far}"
