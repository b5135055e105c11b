"""What each event adds to what the coordinator knows. Nothing is decided here: the judges in `machine.py` decide.

Level-triggered: any record of any node may arrive at any time, in every phase, so each event has one function here.
While another node coordinates, only `Elected` means anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...proto.frozen import replace
from ..records import NodeRecord
from . import agreements, charging, fencing, leases, standing
from .events import BeatsSeen, DeadlineReached, Deposed, Elected, Event, NodeSeen, NodesSeen, ProcessesDied
from .nodes import HAS_FINISHED, WAITING, Nodes, Seen
from .state import Rendezvous, Rules
from .takeover import take_over

Observe = Callable[[Rendezvous, Any, float, Rules], Rendezvous]


def observe_election(state: Rendezvous, event: Elected, now: float, rules: Rules) -> Rendezvous:
    return take_over(event, now, rules)


def observe_deposition(state: Rendezvous, event: Deposed, now: float, rules: Rules) -> Rendezvous:
    return Rendezvous(because="this node no longer coordinates the job")


def observe_node(state: Rendezvous, event: NodeSeen, now: float, rules: Rules) -> Rendezvous:
    return _observe_records(state, (event.record,), now, rules)


def observe_nodes(state: Rendezvous, event: NodesSeen, now: float, rules: Rules) -> Rendezvous:
    return _observe_records(state, event.records, now, rules)


def _observe_records(state: Rendezvous, records: Sequence[NodeRecord], now: float, rules: Rules) -> Rendezvous:
    """The state with these records. What is known of all nodes is copied once: many publish at the same moment."""
    nodes = state.nodes.copy()
    for record in records:
        state = _observe_record(state, record, nodes, now, rules)
    return charging.add_exits(state, [record for record in records if nodes[record.node].record is record])


def _observe_record(state: Rendezvous, record: NodeRecord, nodes: Nodes, now: float, rules: Rules) -> Rendezvous:
    """The state with this record. `nodes`: a copy of the state's, which becomes its own."""
    old = nodes.get(record.node)
    if old is not None and record.seq <= old.record.seq:
        # A notification without a new record: the node may have lost its lease or got one again, so read the leases.
        return replace(state, readings=replace(state.readings, due_at=now))
    began_waiting = record.state is WAITING and (old is None or not old.waiting)
    same = old is not None and not old.lost and (old.record.state, old.record.round) == (record.state, record.round)
    new = Seen(
        record=record,
        arrival=old.arrival if old else len(nodes),
        waiting_since=now if began_waiting or old is None else old.waiting_since,
        heard_at=now,
        alive_at=leases.alive_at(state, old, now, rules),
        count=old.count if old else -1,
        arrived_at=old.arrived_at if old else float("-inf"),
        reached_at=old.reached_at if old else float("-inf"),
        placed=old.placed if old else 0,
        since=old.since if old is not None and same else now,
        fenced_at=old.fenced_at if old is not None and old.record.fenced_round >= record.fenced_round else now,
    )
    nodes.put(new)
    known = agreements.recorded(state if state.nodes is nodes else replace(state, nodes=nodes), record)
    if record.finished and state.barrier_until is None:
        known = replace(known, barrier_until=now + rules.exit_barrier_s)
    return standing.reported(known, record)


def observe_beats(state: Rendezvous, event: BeatsSeen, now: float, rules: Rules) -> Rendezvous:
    aged = leases.age(state, event, now, rules)
    if aged.barrier_until is None and any(not seen.dead for seen in aged.nodes.any_order(HAS_FINISHED)):
        return replace(aged, barrier_until=now + rules.exit_barrier_s)  # one that finished was lost, and is back
    return aged


def observe_deaths(state: Rendezvous, event: ProcessesDied, now: float, rules: Rules) -> Rendezvous:
    return replace(state, died=state.died | fencing.died(state, event.nodes, now, rules))


def observe_time(state: Rendezvous, event: DeadlineReached, now: float, rules: Rules) -> Rendezvous:
    return state


OBSERVATIONS: Mapping[type[Event], Observe] = {
    Elected: observe_election,
    Deposed: observe_deposition,
    NodeSeen: observe_node,
    NodesSeen: observe_nodes,
    BeatsSeen: observe_beats,
    ProcessesDied: observe_deaths,
    DeadlineReached: observe_time,
}
"""For every event there is."""
