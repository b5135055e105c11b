"""What this node does: join, start, watch, stop, come back, finish. A pure machine.

    step(node, event, now, rules) -> Step(node, because, effects)

`TRANSITIONS` maps every (phase, event) to the function that handles it; what cannot happen in a phase is named in
`ILLEGAL`. `EDGES` lists every change of phase with its occasion, and docs/state-machines.md is drawn from it. Time is
this host's monotonic clock, in seconds, and always an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from . import handlers, leaving, losses
from .events import (
    DeadlineReached,
    Effect,
    Event,
    ForwardAsked,
    LeadershipChanged,
    LeaveAsked,
    NurseryLost,
    OpenStore,
    OthersEnded,
    PlaceFailed,
    PlacePrepared,
    RecordWritten,
    RoundSeen,
    SignalReceived,
    SignalUnheard,
    StartFailed,
    StoreCameBack,
    StoreFailed,
    StoreOpened,
    StoreWentAway,
    WorkerExited,
    WorkersGone,
    WorkerStarted,
)
from .state import Node, Phase, Rules
from .transitions import Move

CONNECTING, JOINING, WORKING, STOPPING, FINISHED, ENDING, ENDED = Phase

EDGES: Mapping[tuple[Phase, Phase], str] = {
    (CONNECTING, JOINING): "the store answers",
    (CONNECTING, ENDED): "nobody serves the store, a sick machine, or told to stop",
    (JOINING, WORKING): "a round begins with this node",
    (JOINING, ENDING): "the rendezvous closed, no place came free, the store is lost, a sick machine, or told to stop",
    (WORKING, STOPPING): "a worker failed, all exited 0, the round ended, the store is lost, or told to stop",
    (WORKING, JOINING): "the nursery died, and the workers with it",
    (WORKING, ENDING): "the same, once too often",
    (STOPPING, JOINING): "workers are gone; the job goes on",
    (STOPPING, FINISHED): "workers exited 0 and left nothing behind",
    (STOPPING, ENDING): "workers are gone, or would not die; this node will not come back",
    (FINISHED, ENDING): "the rendezvous closed, the store is lost, or told to stop",
    (ENDING, ENDED): "the last word is written and, on the host, everybody has ended",
}


class IllegalEvent(RuntimeError):
    """An event that cannot happen in this phase, or a change of phase that EDGES does not list. Our bug."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one event led to."""

    node: Node
    because: str
    effects: tuple[Effect, ...]


def begin() -> tuple[Node, tuple[Effect, ...]]:
    """The first state, and what to do first."""
    return Node(), (OpenStore(),)


def step(node: Node, event: Event, now: float, rules: Rules) -> Step:
    """Apply one event. Raises IllegalEvent, leaving the caller's state as it was."""
    handle = TRANSITIONS.get((node.phase, type(event)))
    if handle is None:
        raise IllegalEvent(f"the agent got {event!r} while {node.phase.value}")
    after, effects = handle(node, event, now, rules)
    if after.phase is not node.phase and (node.phase, after.phase) not in EDGES:
        raise IllegalEvent(f"the agent went from {node.phase.value} to {after.phase.value} on {event!r}")
    return Step(after, after.because, effects)


Handler = Callable[[Node, Any, float, Rules], Move]

_HANDLERS: Mapping[Phase, Mapping[type[Event], Handler]] = {
    CONNECTING: {
        StoreOpened: handlers.on_opened,
        StoreFailed: handlers.on_store_failed,
        NurseryLost: losses.on_nursery_lost_at_rest,
        SignalReceived: leaving.on_signalled,
        ForwardAsked: handlers.on_forward_at_rest,
        LeaveAsked: leaving.on_leave_asked,
        DeadlineReached: leaving.on_nothing,
    },
    JOINING: {
        StoreFailed: handlers.on_store_failed,
        StoreWentAway: handlers.on_went_away,
        StoreCameBack: handlers.on_came_back,
        RoundSeen: handlers.on_round_while_joining,
        RecordWritten: leaving.on_nothing,
        LeadershipChanged: leaving.on_leadership,
        PlacePrepared: handlers.on_prepared,
        PlaceFailed: handlers.on_place_failed,
        WorkersGone: leaving.on_nothing,
        NurseryLost: losses.on_nursery_lost_at_rest,
        SignalReceived: leaving.on_signalled,
        ForwardAsked: handlers.on_forward_at_rest,
        SignalUnheard: leaving.on_nothing,
        LeaveAsked: leaving.on_leave_asked,
        DeadlineReached: handlers.on_time_while_joining,
    },
    WORKING: {
        StoreFailed: handlers.on_store_failed,
        StoreWentAway: handlers.on_went_away,
        StoreCameBack: handlers.on_came_back,
        RoundSeen: handlers.on_round_while_working,
        RecordWritten: leaving.on_nothing,
        LeadershipChanged: leaving.on_leadership,
        WorkerStarted: leaving.on_nothing,
        WorkerExited: handlers.on_exited,
        StartFailed: handlers.on_start_failed,
        NurseryLost: losses.on_nursery_lost,
        SignalReceived: leaving.on_signalled,
        ForwardAsked: handlers.on_forward,
        SignalUnheard: handlers.on_unheard,
        LeaveAsked: leaving.on_leave_asked,
        DeadlineReached: handlers.on_time,
    },
    STOPPING: {
        StoreFailed: handlers.on_store_failed,
        StoreWentAway: handlers.on_went_away,
        StoreCameBack: handlers.on_came_back,
        RoundSeen: handlers.on_round_while_stopping,
        RecordWritten: leaving.on_nothing,
        LeadershipChanged: leaving.on_leadership,
        WorkerStarted: leaving.on_nothing,
        WorkerExited: handlers.on_exited_while_stopping,
        StartFailed: handlers.on_start_failed_while_stopping,
        WorkersGone: handlers.on_gone,
        NurseryLost: losses.on_nursery_lost_while_stopping,
        SignalReceived: leaving.on_signalled,
        ForwardAsked: handlers.on_forward_while_stopping,
        SignalUnheard: leaving.on_nothing,
        LeaveAsked: leaving.on_leave_asked,
        DeadlineReached: handlers.on_time_while_stopping,
    },
    FINISHED: {
        StoreFailed: handlers.on_store_failed,
        StoreWentAway: handlers.on_went_away,
        StoreCameBack: handlers.on_came_back,
        RoundSeen: handlers.on_round_while_finished,
        RecordWritten: leaving.on_nothing,
        LeadershipChanged: leaving.on_leadership,
        WorkersGone: leaving.on_nothing,
        NurseryLost: leaving.on_nothing,
        SignalReceived: leaving.on_signalled,
        ForwardAsked: leaving.on_nothing,
        SignalUnheard: leaving.on_nothing,
        LeaveAsked: leaving.on_leave_asked_when_finished,
        DeadlineReached: handlers.on_time,
    },
    ENDING: {
        StoreFailed: leaving.on_store_useless,
        StoreWentAway: leaving.on_went_away_while_ending,
        StoreCameBack: leaving.on_came_back_while_ending,
        RoundSeen: leaving.on_nothing,
        RecordWritten: leaving.on_written,
        LeadershipChanged: leaving.on_leadership,
        OthersEnded: leaving.on_others_ended,
        PlacePrepared: leaving.on_nothing,
        PlaceFailed: leaving.on_nothing,
        WorkerExited: leaving.on_nothing,
        WorkersGone: leaving.on_nothing,
        NurseryLost: leaving.on_nothing,
        SignalReceived: leaving.on_at_once,
        ForwardAsked: leaving.on_nothing,
        SignalUnheard: leaving.on_nothing,
        LeaveAsked: leaving.on_nothing,
        DeadlineReached: leaving.on_time_while_ending,
    },
    ENDED: {},
}

TRANSITIONS: Mapping[tuple[Phase, type[Event]], Handler] = {
    (phase, event): handler for phase, handlers in _HANDLERS.items() for event, handler in handlers.items()
}

ILLEGAL = frozenset((phase, event) for phase in Phase for event in get_args(Event)) - frozenset(TRANSITIONS)
"""What cannot happen: no store, no rounds and no workers before CONNECTING is over; nothing at all after ENDED."""
