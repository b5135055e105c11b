"""What the coordinator's announcements, and this node's place in a round, mean to the node. Pure."""

from __future__ import annotations

from ...proto.frozen import replace
from ...rendezvous.driver.events import RoundSeen
from ...rendezvous.failures import EndKind, charges
from ...rendezvous.records import NodeState, Round, RoundPhase
from ...rendezvous.text import count
from .. import exit_status
from . import on_agreement, on_request, stop_ladder, transitions, verdicts
from .events import Effect, PlaceFailed, PlacePrepared, PreparePlace, WakeAt
from .state import Node, Phase, RoundTally, Rules, Verdict
from .transitions import Move


def on_round_while_joining(node: Node, event: RoundSeen, now: float, rules: Rules) -> Move:
    seen, before = event.round, node.latest_round
    node = on_agreement.without_served(replace(node, latest_round=seen, unanswered_since=None), seen, rules)
    node = transitions.settle_charge(node, rules, now, seen)
    member = seen.member(rules.node)
    if seen.phase is RoundPhase.CLOSED:
        return transitions.end(node, rules, now, verdicts.of_closed(node, seen))
    if node.verdict is not None:
        return transitions.end(node, rules, now, node.verdict)
    if seen.phase is RoundPhase.RUNNING and member is not None and seen.number > node.round and node.place.ready:
        # What was announced of an agreement meanwhile is not announced again.
        started, starting = transitions.start(node, rules, now, seen, member)
        following, more = on_agreement.follow(started, seen, now, rules)
        return following, (*starting, *more)
    if node.paused_until is not None and _costs_nothing(node, rules, seen):
        return transitions.resume(node, f"the pause is over, as round {node.round} costs this node no restart")
    effects: tuple[Effect, ...] = ()
    # Where the job begins again, the round that is over has no members any more: whoever had a place in it reports so.
    passed = _passed(seen, member is not None or seen.nodes == 0)
    if passed > node.round and node.place.ready:
        node, effects = _missed(node, rules, now, seen, passed)
    if seen.phase is RoundPhase.RUNNING and member is None and node.spare_until is None:
        until = now + rules.join_timeout_s
        how = "as a spare" if seen.nodes >= rules.max_nodes else "for the next round"
        because = f"round {seen.number} runs without this node; waiting {how} for up to {rules.join_timeout_s:g} s"
        return replace(node, spare_until=until, because=because), (*effects, WakeAt(until))
    if seen.phase in (RoundPhase.GATHERING, RoundPhase.LAST_CALL):
        return replace(node, spare_until=None, because=f"round {seen.number}: {seen.because}"), effects
    return _progressed(node, before, seen), effects


def _progressed(node: Node, before: Round | None, seen: Round) -> Node:
    """The node that repeats what the coordinator announces of a wait: for which nodes, and for how long yet."""
    if before is None or not seen.differs_in_text_only(before):
        return node
    return replace(node, because=f"round {seen.number}: {seen.because}")


def _costs_nothing(node: Node, rules: Rules, seen: Round) -> bool:
    """Whether it is settled that neither this node's workers nor its host caused the end of its round. While that is
    not settled, the announcement still holds the ending before."""
    ended = seen.ended
    if ended is None or ended.round != node.round or not all(map(charges, node.tally.failures)):
        return False
    return not transitions.costs_us(node, rules, ended)


def _missed(node: Node, rules: Rules, now: float, seen: Round, passed: int) -> Move:
    because = f"round {passed} is over; no worker of it runs here"
    missed = replace(node, tally=RoundTally(passed))
    if (seen.master_addr, seen.master_port) == (node.place.addr, node.place.port):
        # This node's place was that round's master; the next round gets a port that no worker of the last one knows.
        return replace(missed, place=replace(node.place, ready=False), because=because), (PreparePlace(),)
    return transitions.offer(missed, rules, now, because)


def _passed(seen: Round, member: bool) -> int:
    """The last round that is over for this node. The node may have had a place in it without receiving it; the
    coordinator then waits for its record that no worker of that round runs here."""
    return seen.number if seen.phase is RoundPhase.OVER and member else seen.number - 1


def on_round_while_working(node: Node, event: RoundSeen, now: float, rules: Rules) -> Move:
    seen, before = event.round, node.latest_round
    node = replace(node, latest_round=seen)
    if seen.phase is RoundPhase.CLOSED:
        verdict = verdicts.of_closed(node, seen)
        return transitions.stop(node, rules, now, NodeState.LEAVING, verdict.because, verdict=verdict)
    if _still_in(node, seen, rules):
        return on_agreement.follow(_progressed(node, before, seen), seen, now, rules)
    ended = seen.unsettled or seen.ended
    if seen.phase is not RoundPhase.OVER or ended is None:
        why = f"round {seen.number} began without this node"
    else:
        why = ended.because
    because = f"round {node.round} is over: {why}"
    held_s = stop_ladder.HOLD_S if seen.hold else 0.0
    if seen.hold and ended is not None and ended.kind is EndKind.PREEMPTION:
        held_s = rules.grace_s
    node = on_agreement.without_served(node, seen, rules)
    return transitions.stop(node, rules, now, NodeState.STOPPING, because, held_s=held_s)


def _still_in(node: Node, seen: Round, rules: Rules) -> bool:
    """Whether the round that this node works on goes on, with this node."""
    return seen.number < node.round or (
        seen.phase is RoundPhase.RUNNING and seen.number == node.round and seen.member(rules.node) is not None
    )


def on_round_while_stopping(node: Node, event: RoundSeen, now: float, rules: Rules) -> Move:
    node = on_agreement.without_served(replace(node, latest_round=event.round), event.round, rules)
    if event.round.phase is RoundPhase.CLOSED and node.verdict is None and not node.finished:
        return on_request.leave(node, rules, now, verdicts.of_closed(node, event.round))
    if _leaves_what_is_over(node, event.round, rules):
        because = f"round {node.round} is over, so what its workers left behind on this node is stopped"
        return transitions.ask_leftovers(replace(node, because=because), (), now)
    return node, ()


def _leaves_what_is_over(node: Node, seen: Round, rules: Rules) -> bool:
    """Whether processes that this node's finished workers left behind may run beside the next round: the coordinator
    waits for their end, and counts this node as lost if that takes long."""
    kept = rules.leftovers is stop_ladder.Leftovers.KEEP
    return node.finished and not kept and seen.phase is not RoundPhase.CLOSED and not _still_in(node, seen, rules)


def on_round_while_finished(node: Node, event: RoundSeen, now: float, rules: Rules) -> Move:
    seen, before = event.round, node.latest_round
    node = on_agreement.without_served(replace(node, latest_round=seen), seen, rules)
    if seen.phase is RoundPhase.CLOSED:
        return transitions.end(node, rules, now, verdicts.of_closed(node, seen))
    node = _progressed(node, before, seen)
    over = rules.fences and seen.phase is RoundPhase.OVER
    if over and node.record is not None and node.record.fenced_round < seen.number:
        # Whoever waits for workers that are cut off waits for this.
        return transitions.publish(node, rules, now, NodeState.FINISHED, node.record.because)
    return node, ()


def on_prepared(node: Node, event: PlacePrepared, now: float, rules: Rules) -> Move:
    changed = node.round > 0 and event.nproc != node.place.nproc
    room = f", with room for {count(event.nproc, 'worker')} instead of {node.place.nproc}" if changed else ""
    because = f"waiting for a place in a round{room}"
    place = replace(node.place, nproc=event.nproc, port=event.port)
    node, effects = transitions.offer(replace(node, place=place), rules, now, because)
    if node.latest_round is not None:
        node, more = on_round_while_joining(node, RoundSeen(node.latest_round), now, rules)
        effects = (*effects, *more)
    node, more = _await_coordinator(node, now, rules)
    return node, (*effects, *more)


def _await_coordinator(node: Node, now: float, rules: Rules) -> Move:
    """This node has asked for a place. Where the store elects, the coordinator may be gone, with nobody to say so: an
    answer is due where nothing is announced yet, or a round still counts as running that is over here."""
    seen = node.latest_round
    over_here = seen is not None and seen.phase is RoundPhase.RUNNING and seen.number == node.round
    due = node.phase is Phase.JOINING and (seen is None or over_here)
    return transitions.await_answer(node, now) if rules.elects and due else (replace(node, unanswered_since=None), ())


def on_place_failed(node: Node, event: PlaceFailed, now: float, rules: Rules) -> Move:
    status = exit_status.HOST_FAILED if event.by_host else exit_status.USAGE
    return transitions.end(node, rules, now, Verdict(status, event.reason))
