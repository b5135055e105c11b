"""What this node does: join, start, watch, stop, come back, finish. A pure machine.

    step(node, event, now, rules) -> Step(node, because, effects)

`TRANSITIONS` maps every (phase, event) to the function that handles it; what cannot happen in a phase is named in
`ILLEGAL`. `EDGES` lists every change of phase with its occasion, and docs/state-machines.md is drawn from it. Time is
this host's monotonic clock, in seconds, and always an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from ...proto.frozen import dataclass
from ...rendezvous.driver.events import (
    LeadershipChanged,
    NeighboursEnded,
    OthersEnded,
    RecordWritten,
    RoundSeen,
    StoreCameBack,
    StoreFailed,
    StoreHandedOver,
    StoreOpened,
    StoreWentAway,
)
from . import on_agreement, on_deadline, on_request, on_round, on_store, on_workers
from .events import (
    ActAsked,
    Acted,
    BoundAwaited,
    BoundFound,
    DeadlineReached,
    Effect,
    Event,
    ForwardAsked,
    HangFound,
    LeaveAsked,
    LeftoversNamed,
    NurseryLost,
    OpenStore,
    PlaceFailed,
    PlacePrepared,
    SignalNotForwarded,
    SignalReceived,
    StartFailed,
    WorkerExited,
    WorkersFenced,
    WorkersGone,
    WorkerStoreLost,
)
from .state import Node, Phase, Rules
from .transitions import Move

CONNECTING, JOINING, WORKING, STOPPING, FINISHED, ENDING, ENDED = Phase

EDGES: Mapping[tuple[Phase, Phase], str] = {
    (CONNECTING, JOINING): "the store answers",
    (CONNECTING, ENDED): "the store is not served, the host keeps failing, or a request to stop",
    (JOINING, WORKING): "a round begins with this node",
    (
        JOINING,
        CONNECTING,
    ): "the job goes on elsewhere, and no round has begun here, or this node was silent as its host",
    (
        JOINING,
        ENDING,
    ): "the rendezvous closed, no place came free, store lost, the host keeps failing, or a request to stop",
    (WORKING, STOPPING): "a worker failed, all exited 0, the round ended, the store is lost, or a request to stop",
    (WORKING, JOINING): "the nursery died, and the workers with it",
    (WORKING, ENDING): "the same, too often",
    (STOPPING, CONNECTING): "workers are gone, and another node hosts the store, as this one was silent",
    (STOPPING, JOINING): "workers are gone; the job goes on",
    (STOPPING, FINISHED): "workers exited 0 and left nothing behind",
    (STOPPING, ENDING): "workers are gone, or do not die; this node will not come back",
    (FINISHED, ENDING): "the rendezvous closed, the store is lost, or a request to stop",
    (ENDING, ENDED): "the last record is written and, on the host, every node has ended or elects another host",
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


def ignore(node: Node, event: Event, now: float, rules: Rules) -> Move:
    """The event changes nothing in this phase."""
    return node, ()


Handler = Callable[[Node, Any, float, Rules], Move]

_HANDLERS: Mapping[Phase, Mapping[type[Event], Handler]] = {
    CONNECTING: {
        StoreOpened: on_store.on_opened,
        StoreFailed: on_store.on_store_failed,
        PlacePrepared: ignore,
        PlaceFailed: ignore,
        WorkersFenced: ignore,
        WorkersGone: ignore,
        WorkerStoreLost: ignore,
        NeighboursEnded: ignore,
        NurseryLost: on_workers.on_nursery_lost_at_rest,
        HangFound: ignore,
        SignalReceived: on_request.on_signalled,
        ForwardAsked: on_request.on_forward_at_rest,
        LeaveAsked: on_request.on_leave_asked,
        ActAsked: on_agreement.on_asked,
        DeadlineReached: ignore,
    },
    JOINING: {
        StoreFailed: on_store.on_store_failed_while_joining,
        StoreWentAway: on_store.on_went_away,
        StoreCameBack: on_store.on_came_back,
        RoundSeen: on_round.on_round_while_joining,
        RecordWritten: ignore,
        LeadershipChanged: on_store.on_leadership,
        NeighboursEnded: on_store.on_neighbours_ended,
        PlacePrepared: on_round.on_prepared,
        PlaceFailed: on_round.on_place_failed,
        WorkersFenced: ignore,
        WorkersGone: ignore,
        NurseryLost: on_workers.on_nursery_lost_at_rest,
        WorkerStoreLost: ignore,
        HangFound: ignore,
        SignalReceived: on_request.on_signalled,
        ForwardAsked: on_request.on_forward_at_rest,
        SignalNotForwarded: ignore,
        LeaveAsked: on_request.on_leave_asked,
        ActAsked: on_agreement.on_asked,
        BoundFound: ignore,
        BoundAwaited: ignore,
        Acted: ignore,
        DeadlineReached: on_deadline.on_time_while_joining,
    },
    WORKING: {
        StoreFailed: on_store.on_store_failed,
        StoreWentAway: on_store.on_went_away,
        StoreCameBack: on_store.on_came_back,
        RoundSeen: on_round.on_round_while_working,
        RecordWritten: ignore,
        LeadershipChanged: on_store.on_leadership,
        NeighboursEnded: on_store.on_neighbours_ended,
        WorkerExited: on_workers.on_exited,
        StartFailed: on_workers.on_start_failed,
        WorkersFenced: on_workers.on_fenced,
        NurseryLost: on_workers.on_nursery_lost,
        WorkerStoreLost: on_workers.on_store_lost,
        HangFound: on_workers.on_hang,
        SignalReceived: on_request.on_signalled,
        ForwardAsked: on_request.on_forward,
        SignalNotForwarded: on_request.on_not_forwarded,
        LeaveAsked: on_request.on_leave_asked,
        ActAsked: on_agreement.on_asked,
        BoundFound: on_agreement.on_bound,
        BoundAwaited: on_agreement.on_bound_awaited,
        Acted: on_agreement.on_acted,
        DeadlineReached: on_deadline.on_time,
    },
    STOPPING: {
        StoreFailed: on_store.on_store_failed,
        StoreWentAway: on_store.on_went_away,
        StoreCameBack: on_store.on_came_back,
        RoundSeen: on_round.on_round_while_stopping,
        RecordWritten: ignore,
        LeadershipChanged: on_store.on_leadership,
        NeighboursEnded: on_store.on_neighbours_ended,
        WorkerExited: on_workers.on_exited_while_stopping,
        StartFailed: on_workers.on_start_failed_while_stopping,
        WorkersFenced: ignore,
        WorkersGone: on_workers.on_workers_gone,
        LeftoversNamed: on_workers.on_leftovers_named,
        NurseryLost: on_workers.on_nursery_lost_while_stopping,
        WorkerStoreLost: ignore,
        HangFound: ignore,
        SignalReceived: on_request.on_signalled,
        ForwardAsked: on_request.on_forward_while_stopping,
        SignalNotForwarded: ignore,
        LeaveAsked: on_request.on_leave_asked,
        ActAsked: on_agreement.on_asked,
        BoundFound: ignore,
        BoundAwaited: ignore,
        Acted: ignore,
        DeadlineReached: on_deadline.on_time_while_stopping,
    },
    FINISHED: {
        StoreFailed: on_store.on_store_failed,
        StoreWentAway: on_store.on_went_away,
        StoreCameBack: on_store.on_came_back,
        RoundSeen: on_round.on_round_while_finished,
        RecordWritten: ignore,
        LeadershipChanged: on_store.on_leadership,
        NeighboursEnded: on_store.on_neighbours_ended,
        WorkersFenced: ignore,
        WorkersGone: ignore,
        LeftoversNamed: ignore,
        NurseryLost: ignore,
        WorkerStoreLost: on_workers.on_store_lost_when_finished,
        HangFound: ignore,
        SignalReceived: on_request.on_signalled,
        ForwardAsked: ignore,
        SignalNotForwarded: ignore,
        LeaveAsked: on_request.on_leave_asked_when_finished,
        ActAsked: on_agreement.on_asked,
        BoundFound: ignore,
        BoundAwaited: ignore,
        Acted: ignore,
        DeadlineReached: on_deadline.on_time,
    },
    ENDING: {
        StoreFailed: on_store.on_store_useless,
        StoreWentAway: on_store.on_went_away_while_ending,
        StoreCameBack: on_store.on_came_back_while_ending,
        RoundSeen: ignore,
        RecordWritten: on_store.on_written,
        LeadershipChanged: on_store.on_leadership,
        NeighboursEnded: ignore,
        OthersEnded: on_store.on_others_ended,
        StoreHandedOver: on_store.on_handed_over,
        PlacePrepared: ignore,
        PlaceFailed: ignore,
        WorkerExited: ignore,
        WorkersFenced: ignore,
        WorkersGone: ignore,
        LeftoversNamed: ignore,
        NurseryLost: ignore,
        WorkerStoreLost: ignore,
        HangFound: ignore,
        SignalReceived: on_request.on_signal_while_ending,
        ForwardAsked: ignore,
        SignalNotForwarded: ignore,
        LeaveAsked: ignore,
        ActAsked: ignore,
        BoundFound: ignore,
        BoundAwaited: ignore,
        Acted: ignore,
        DeadlineReached: on_deadline.on_time_while_ending,
    },
    ENDED: {},
}

TRANSITIONS: Mapping[tuple[Phase, type[Event]], Handler] = {
    (phase, event): handler for phase, handlers in _HANDLERS.items() for event, handler in handlers.items()
}

ILLEGAL = frozenset((phase, event) for phase in Phase for event in get_args(Event)) - frozenset(TRANSITIONS)
"""What cannot happen: no store, no rounds and no workers before CONNECTING is over; nothing at all after ENDED."""
