"""When the workers of nodes that are lost have ended, so that a round may begin without them. Pure.

A lost node may be dead, or cut off with workers that run on. They end by its fence (`driver/fencing.py`). Two things
alone move that on: a heartbeat that the store acknowledged, and permissions of all witnesses of their round. A node
that has no lease has had no heartbeat acknowledged since long enough. What a witness has permitted lasts no longer than
`PERMITTED` leases behind the record by which it says that it permits no more; and no permission lasts for longer than
the node's `alone_s` behind its last heartbeat.

Also who may vote for the next host of a store that a node hosts (docs/adr/0049): they hold what witnesses do.
"""

from __future__ import annotations

from collections.abc import Collection

from ..codec.limits import INLINE_MEMBERS
from ..election.electorate import Electorate, elects, of_round
from ..records import OUTVOTING_BEATS, Member, Witness
from .nodes import ENDED, GOING, LOST, SAW_ENDED, WORKERS_MAY_LIVE, Seen
from .state import CLOSED, OVER, RUNNING, Rendezvous, Rules

WITNESSES = 3
"""So many members of a round, the first, are its witnesses."""
UNWITNESSED = 0.35
"""Leases for which workers of a node that has no witness may run behind its loss, where a node hosts the store: its
last heartbeat lets them run for 1.25, and it counts as lost no earlier than one lease behind that."""
PERMITTED = 0.75
"""Leases for which workers may run behind the last permission of a witness; a tenth more than they do."""
REACHED = 0.75
"""Leases behind the arrival of a heartbeat that was acknowledged for which its node has not elected another host as
this one is silent: it does so no earlier than 0.8 behind the last one (`election.state.HOLDS`)."""
HOST_HOLDS = 1.4
"""Leases for which workers of the host run behind the last heartbeat by which it reached half of the voters. It may
stand still for 0.8 of one and more, as up to 0.6 have passed since then before it does: three heartbeats, of which one
shows that the one before was acknowledged, and two are the time between readings."""
OUTVOTED = 1.45
"""Leases for which these may run behind the last heartbeat that the host acknowledged of those who replace it, as one
of them is among that half; a moment more than they do."""
RE_FORMS_S = 2.0
"""So long a host that has ended waits for the next round to begin before it hands the store over: then nobody waits for
an election, and it mostly takes less."""


def witnesses(state: Rendezvous, members: tuple[Member, ...], rules: Rules) -> tuple[Witness, ...]:
    """Of a round with these members. A node that hosts the store is none: who does not reach the store does not reach
    it either, and it begins no round while it is frozen."""
    if not rules.fences:
        return ()
    able = [member.node for member in members if not (rules.hosted and member.node == rules.own)]
    records = [state.nodes[node].record for node in able[:WITNESSES]]
    return tuple(Witness(record.node, record.addr, record.witness_port) for record in records)


def voters(state: Rendezvous, members: tuple[Member, ...], rules: Rules) -> tuple[tuple[Witness, ...], tuple[str, ...]]:
    """As `Round.voters` and `Round.before`, of a round with these members. A round whose members are on pages has no
    voters, as a voter must hold all of them."""
    if not rules.succeeds or len(members) > INLINE_MEMBERS:
        return (), ()
    found = [_voter(state, member.node) for member in members]
    able = {voter.node: voter for voter in found if voter.store and voter.port}
    last = Electorate(tuple(voter.node for voter in state.placement.voters), state.placement.before)
    absent = [node for node in last.voters if (seen := state.nodes.get(node)) is None or _cannot_vote(seen)]
    elect = of_round(list(able), last, absent)
    return tuple(able[node] for node in elect.voters), elect.before


def host(state: Rendezvous, rules: Rules) -> Witness | None:
    """This node, which hosts the store, where another may host it next."""
    return _voter(state, rules.own) if rules.succeeds and rules.own in state.nodes else None


def hands_over_at(state: Rendezvous, rules: Rules) -> float | None:
    """When this node, which hosts the store and has ended, may leave it to the others; None: it serves on, as they need
    the store no longer than they need to read that the job is over, or as too few of those stay that could elect. While
    a round begins its newcomers need it as well: one that has not read of it yet knows neither its place nor where to
    find the next host. Voters of the round before are told behind what they read last."""
    own = state.nodes.get(rules.own)
    if not rules.succeeds or state.phase is CLOSED or own is None or own.record.state is not ENDED:
        return None
    told = state.placement.before
    if state.phase is RUNNING and any(seen.record.node not in told for seen in state.starting()):
        return None
    electorate = Electorate(tuple(voter.node for voter in state.placement.voters), state.placement.before)
    asked = (*electorate.voters, *electorate.before)
    stay = [node for node in asked if (seen := state.nodes.get(node)) is not None and not seen.gone]
    if not elects(electorate, stay, (rules.own,), rules.own):
        return None
    return state.since + RE_FORMS_S if state.phase is OVER else state.since


def _voter(state: Rendezvous, node: str) -> Witness:
    record = state.nodes[node].record
    return Witness(node, record.addr, record.vote_port, record.store)


def _cannot_vote(seen: Seen) -> bool:
    """It has said goodbye, or has sent no heartbeat for a lease."""
    return seen.record.state in GOING or (seen.lost and not seen.overdue)


def silent_majority(state: Rendezvous, now: float, rules: Rules) -> list[Seen]:
    """Voters, more than half of those of the last round or of the one before, that this node, which hosts the store,
    does not reach: they may have elected another host. Empty: those that are silent are no majority."""
    if not rules.outvotes:
        return []
    since = now - REACHED * rules.lease_s
    for group in _reached(state, rules):
        silent = [state.nodes[node] for node, at in group.items() if at < since and node in state.nodes]
        if 2 * len(silent) > len(group):
            return silent
    return []


def host_until(state: Rendezvous, rules: Rules) -> float:
    """Until when workers of this node, which hosts the store, may run: before others that have replaced it begin a
    round. It is not replaced while half of the voters, itself counted, reach it."""
    if not rules.outvotes or state.phase is CLOSED:
        return float("inf")
    return min(holds_until(group.values(), rules.lease_s) for group in _reached(state, rules))


def holds_until(reached: Collection[float], lease_s: float) -> float:
    """The same, by when each of one group had elected no other host yet."""
    latest = sorted(reached, reverse=True)
    return latest[(len(latest) - 1) // 2] + HOST_HOLDS * lease_s if latest else float("inf")


def died(state: Rendezvous, nodes: frozenset[str], now: float, rules: Rules) -> frozenset[str]:
    """Those of these nodes, which have just died, that have elected no other host before."""
    since = now - REACHED * rules.lease_s
    silent = {node for group in _reached(state, rules) for node, at in group.items() if at < since}
    return nodes - silent


def _reached(state: Rendezvous, rules: Rules) -> list[dict[str, float]]:
    """By each voter of the last round, until when it had elected no other host, as far as this node knows; for ever, if
    it elects nobody. And the same of the round before, by which those elect that have not read of the last one."""
    placement = state.placement
    last = state.number if state.phase in (RUNNING, OVER) else state.number - 1
    nodes = state.nodes
    read = [node.node for node in placement.previous if node.node in nodes and nodes[node.node].record.round >= last]
    voters = _reached_at(state, placement.voters, placement.began_at, rules)
    previous = _reached_at(state, placement.previous, placement.previous_at, rules)
    return [voters, previous | dict.fromkeys(read, float("inf"))]


def _reached_at(state: Rendezvous, group: tuple[Witness, ...], began_at: float, rules: Rules) -> dict[str, float]:
    """Of voters of a round that began then. Who has read of that has had a heartbeat acknowledged shortly before."""
    since = max(state.elected_at, began_at - rules.lease_s / OUTVOTING_BEATS)
    found = {}
    for node in [voter.node for voter in group]:
        seen = state.nodes.get(node)
        mute = node == rules.own or node in state.died or (seen is not None and seen.record.state in GOING)
        found[node] = float("inf") if mute else max(since, seen.reached_at if seen is not None else since)
    return found


def cut_off(state: Rendezvous, rules: Rules) -> list[Seen]:
    """While a round is over: members that are lost, and whose workers of it may run on. One that is lost although it
    sends heartbeats ends them when it reads that the round is over."""
    if not rules.fences or state.phase is not OVER:
        return []
    silent = [seen for seen in state.nodes.having(LOST) if not seen.overdue and _round_of(seen) == state.number]
    ended = _ended_on_their_hosts(state) if silent else frozenset()
    return [seen for seen in silent if seen.record.presence not in ended]


def _ended_on_their_hosts(state: Rendezvous) -> frozenset[str]:
    """Presences of agents of which no process is left, by the records of others on the same host. A presence is never
    used again, and who was on another host would not have found it."""
    return frozenset(each for seen in state.nodes.any_order(SAW_ENDED) for each in seen.record.ended_here if each)


def ended(state: Rendezvous, now: float, rules: Rules) -> bool:
    """Whether no worker runs on nodes that are cut off, and none of them can still start one: a reading of the leases
    that was asked for since the end of the round was announced has shown that they have none."""
    silent = cut_off(state, rules)
    if not silent:
        return True
    return not needs_reading(state, rules) and all(now >= ends_at(state, seen, rules) for seen in silent)


def needs_reading(state: Rendezvous, rules: Rules) -> bool:
    """Whether the leases must be read once more."""
    confirmed = state.readings.confirmed_until
    return bool(cut_off(state, rules)) and (confirmed is None or confirmed < state.since)


def ends_at(state: Rendezvous, seen: Seen, rules: Rules) -> float:
    """When the workers of this node, which is cut off, have ended."""
    witnesses = state.placement.witnesses
    if seen.record.node in state.outvoted:  # nobody has permitted its workers anything
        return outvoted_until(state, rules)
    if rules.hosted and all(witness.node == seen.record.node for witness in witnesses):
        return seen.lost_at + UNWITNESSED * rules.lease_s
    known = [seen.lost_at + (seen.record.alone_s or rules.alone_s)]
    for witness in witnesses:
        other = state.nodes.get(witness.node)
        if other is None or other is seen or other.record.fenced_round < state.number:
            continue
        permitted = other.record.permitted_round >= state.number
        known.append(other.fenced_at + (PERMITTED * rules.lease_s if permitted else 0.0))
    return min(known)


def outvoted_until(state: Rendezvous, rules: Rules) -> float:
    """When the workers of a host that this node has replaced, as it was silent, have ended."""
    return state.silent_since + OUTVOTED * rules.lease_s


def deadlines(state: Rendezvous, rules: Rules) -> list[float]:
    """When each of them has ended its workers."""
    return [ends_at(state, seen, rules) for seen in cut_off(state, rules)]


def _round_of(seen: Seen) -> int:
    """The round whose workers may run there; 0: none runs."""
    record = seen.record
    if seen.unaware:
        return seen.placed
    if record.state in WORKERS_MAY_LIVE and not record.all_exits_reported:
        return max(record.round, seen.placed)
    return 0
