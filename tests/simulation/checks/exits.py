"""Whether an agent may end as it does, given what the simulator knows to be true."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from elastic_agent.agent import exit_status
from elastic_agent.agent.lifecycle import restart_policy, verdicts
from elastic_agent.agent.lifecycle.state import Phase, Verdict
from elastic_agent.rendezvous.records import Outcome, RoundPhase

from .invariants import CODED, HOSTED, KEPT, LEFT_NO_WORKER, ONE_STATUS, TRUTHFUL

BY_REQUEST = {Outcome.KILLED: exit_status.KILL_SWITCH, Outcome.PREEMPTED: exit_status.PREEMPTED}
"""Outcomes that people or schedulers ask for, and the status of every agent then."""

if TYPE_CHECKING:
    from ..world.node import SimNode
    from .checkers import Checkers


def gave_up(verdict: Verdict | None) -> bool:
    """Whether the node left workers behind that SIGKILL did not end."""
    return verdict is not None and verdict.because.startswith(verdicts.GAVE_UP)


def judge(truth: Checkers, node: SimNode, verdict: Verdict) -> None:
    """An agent ends."""
    code = verdict.exit_code
    truth.world.reached.note(f"exit status {code}")
    clean = node.state.finished and node.nursery.clean.get(node.state.round) == node.nproc
    kept = not clean or code == 0 or node.ident in truth.asked or gave_up(verdict)
    kept = kept or verdict.outcome in BY_REQUEST
    truth.need(kept, KEPT, f"{node.ident} exits {code}: {verdict.because}")
    if code == 0:
        _truthful(truth, node, verdict)
    else:
        truth.need(_deserved(truth, node, verdict), CODED, f"{node.ident} exits {code}: {verdict.because}")
    _one_status(truth, node, verdict)
    if gave_up(verdict):
        truth.world.reached.note("SIGKILL did not end workers")
    truth.need(not node.nursery.busy or gave_up(verdict), LEFT_NO_WORKER, f"{node.ident} ends with workers")
    if node.host:
        _hosted(truth, node)


def _hosted(truth: Checkers, node: SimNode) -> None:
    if node.ident in truth.hurried or node.ident in truth.cut_off or truth.world.store.spoiled:
        return
    if truth.store_was_away(node):
        return
    rendezvous = truth.world.rendezvous
    known = truth.known_at_close if truth.closed or rendezvous is None else frozenset(rendezvous.nodes)
    others = [n for n in truth.world.nodes.values() if not n.done and n is not node and n.ident in known]
    lost = truth.lost | truth.lost_at_retirement
    left = [n.ident for n in others if n.ident not in lost and n.state.phase is not Phase.ENDING]
    truth.need(not left, HOSTED, f"{left} still need it")


def _one_status(truth: Checkers, node: SimNode, verdict: Verdict) -> None:
    rendezvous = truth.world.rendezvous
    status = BY_REQUEST.get(rendezvous.outcome) if rendezvous is not None and rendezvous.outcome is not None else None
    if status is None or verdict.exit_code == status or node.place_fails:
        return
    own = node.ident in truth.asked or node.ident in truth.cut_off or verdict.exit_code == exit_status.HOST_FAILED
    newest = node.state.latest_round
    unaware = newest is None or newest.phase is not RoundPhase.CLOSED
    truth.need(
        own or unaware or gave_up(verdict), ONE_STATUS, f"{node.ident} exits {verdict.exit_code}: {verdict.because}"
    )


def _truthful(truth: Checkers, node: SimNode, verdict: Verdict) -> None:
    state = node.state
    clean = state.round > 0 and node.nursery.clean.get(state.round) == node.nproc
    rendezvous = truth.world.rendezvous
    succeeded = rendezvous is not None and rendezvous.outcome is Outcome.SUCCEEDED
    spare = succeeded and rendezvous is not None and node.ident not in rendezvous.last_ranks()
    if spare and not clean:
        truth.world.reached.note("a spare was not needed")
    truth.need(clean or spare, TRUTHFUL, f"{node.ident} exits 0: {verdict.because}")


def _deserved(truth: Checkers, node: SimNode, verdict: Verdict) -> bool:
    rendezvous = truth.world.rendezvous
    outcome = rendezvous.outcome if rendezvous is not None else None
    code = verdict.exit_code
    if code in (1, 93):
        if verdict.outcome is None and (ended := verdict.ending) is not None:
            truth.world.reached.note("a node came back from which a restart too many was charged")
            return code == 1 and ended.charged == node.ident and truth.restarts.spent(node.ident, ended.round)
        forbidden = verdict.cause is not None and verdict.cause.final
        return (outcome is Outcome.FAILED and forbidden is (code == 93)) or gave_up(verdict)
    if code == 71:
        losses = node.nursery.losses[-restart_policy.MAX_HOST_FAILURES :]
        apart_s = restart_policy.HEALTHY_S + node.rules.restarts.pause_max_s
        near = all(late - early <= apart_s for early, late in pairwise(losses))
        return len(losses) == restart_policy.MAX_HOST_FAILURES and near
    if code == 76:
        waited = truth.world.now - node.joined_at >= truth.world.job.join_timeout_s
        spare = node.state.spare_until is not None and node.clock() >= node.state.spare_until and waited
        if spare:
            truth.world.reached.note("a spare gave up")
        return spare or outcome in (Outcome.JOIN_TIMED_OUT, Outcome.ABANDONED)
    if code == 80:
        return node.ident in truth.cut_off or (not node.link.opened and _waited_for_store(truth, node, verdict))
    if code == 82:
        return outcome is Outcome.UNFINISHED
    if code == 2:
        return node.place_fails or outcome is Outcome.MISCONFIGURED
    if outcome is not None and code == BY_REQUEST.get(outcome):
        return True
    return code in (75, 143) and node.ident in truth.asked


def _waited_for_store(truth: Checkers, node: SimNode, verdict: Verdict) -> bool:
    """Whether this node, which never reached the store, tried for as long as it says. On etcd the drivers are handed
    a store that is open."""
    waited_s = truth.world.now - node.joined_at
    return waited_s >= truth.world.job.connect_timeout_s or "gave up on the store" not in verdict.because
