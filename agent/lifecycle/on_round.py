"""What the coordinator's announcements, and this node's place in a round, mean to the node. Pure."""

from __future__ import annotations

from dataclasses import replace

from ...rendezvous.failures import charges
from ...rendezvous.records import NodeState, Round, RoundPhase
from ...rendezvous.text import count
from . import on_request, transitions, verdicts
from .events import Effect, PlaceFailed, PlacePrepared, PreparePlace, RoundSeen, WakeAt
from .state import Node, Rules, Verdict
from .transitions import Move


def on_round_while_joining(node: Node, event: RoundSeen, now: float, rules: Rules) -> Move:
    seen = event.round
    node = transitions.settle_charge(replace(node, latest_round=seen), rules, now, seen)
    member = seen.member(rules.node)
    if seen.phase is RoundPhase.CLOSED:
        return transitions.end(node, rules, now, verdicts.of_closed(node, seen))
    if seen.phase is RoundPhase.RUNNING and member is not None and seen.number > node.round and node.place_ready:
        return transitions.start(node, rules, now, seen, member)
    if node.paused_until is not None and _costs_nothing(node, rules, seen):
        return transitions.resume(node, f"the pause is over, as round {node.round} costs this node no restart")
    said: tuple[Effect, ...] = ()
    passed = _passed(seen, member is not None)
    if passed > node.round and node.place_ready:
        node, said = _missed(node, rules, now, seen, passed)
    if seen.phase is RoundPhase.RUNNING and member is None and node.spare_until is None:
        until = now + rules.join_timeout_s
        how = "as a spare" if len(seen.members) >= rules.max_nodes else "for the next"
        because = f"round {seen.number} runs without this node, which waits {how}, for up to {rules.join_timeout_s:g} s"
        return replace(node, spare_until=until, because=because), (*said, WakeAt(until))
    if seen.phase in (RoundPhase.GATHERING, RoundPhase.LAST_CALL):
        return replace(
            node, spare_until=None, because=f"round {seen.number} is {seen.phase.value}: {seen.because}"
        ), said
    return node, said


def _costs_nothing(node: Node, rules: Rules, seen: Round) -> bool:
    """Whether it is settled that the end of our round was not our workers' fault, nor our machine's. While it is open,
    the last one is announced."""
    ended = seen.ended
    if ended is None or ended.round != node.round or not all(map(charges, node.failures)):
        return False
    return not transitions.costs_us(node, rules, ended)


def _missed(node: Node, rules: Rules, now: float, seen: Round, passed: int) -> Move:
    because = f"round {passed} is over, and no worker of it is here"
    missed = replace(node, round=passed, failures=(), deaths=(), failed_at=None)
    if (seen.master_addr, seen.master_port) == (node.addr, node.port):
        # Our place was that round's master: the next gets another, which nobody of the last one knows.
        return replace(missed, place_ready=False, because=because), (PreparePlace(),)
    return transitions.offer(missed, rules, now, because)


def _passed(seen: Round, member: bool) -> int:
    """The last round that is over for this node. We may have had a place in it and never have heard so; the coordinator
    then waits for our word that none of its workers live here."""
    return seen.number if seen.phase is RoundPhase.OVER and member else seen.number - 1


def on_round_while_working(node: Node, event: RoundSeen, now: float, rules: Rules) -> Move:
    seen = event.round
    node = replace(node, latest_round=seen)
    if seen.phase is RoundPhase.CLOSED:
        verdict = verdicts.of_closed(node, seen)
        return transitions.stop(node, rules, now, NodeState.LEAVING, verdict.because, verdict=verdict)
    if _still_mine(node, seen, rules):
        return node, ()
    why = seen.because if seen.phase is RoundPhase.OVER else f"round {seen.number} began without this node"
    because = f"round {node.round} is over: {why}"
    return transitions.stop(node, rules, now, NodeState.STOPPING, because, hold=seen.hold)


def _still_mine(node: Node, seen: Round, rules: Rules) -> bool:
    return seen.number < node.round or (
        seen.phase is RoundPhase.RUNNING and seen.number == node.round and seen.member(rules.node) is not None
    )


def on_round_while_stopping(node: Node, event: RoundSeen, now: float, rules: Rules) -> Move:
    node = replace(node, latest_round=event.round)
    if event.round.phase is RoundPhase.CLOSED and node.verdict is None and not node.finished:
        return on_request.leave(node, rules, now, verdicts.of_closed(node, event.round))
    return node, ()


def on_round_while_finished(node: Node, event: RoundSeen, now: float, rules: Rules) -> Move:
    node = replace(node, latest_round=event.round)
    if event.round.phase is RoundPhase.CLOSED:
        return transitions.end(node, rules, now, verdicts.of_closed(node, event.round))
    return node, ()


def on_prepared(node: Node, event: PlacePrepared, now: float, rules: Rules) -> Move:
    changed = node.round > 0 and event.nproc != node.nproc
    room = f", with room for {count(event.nproc, 'worker')}, no longer {node.nproc}" if changed else ""
    because = f"waiting for a place in a round{room}"
    node, effects = transitions.offer(replace(node, nproc=event.nproc, port=event.port), rules, now, because)
    if node.latest_round is None:
        return node, effects
    seen_again, more = on_round_while_joining(node, RoundSeen(node.latest_round), now, rules)
    return seen_again, (*effects, *more)


def on_place_failed(node: Node, event: PlaceFailed, now: float, rules: Rules) -> Move:
    status = verdicts.HOST_FAILED if event.machine else verdicts.USAGE
    return transitions.end(node, rules, now, Verdict(status, event.reason))
