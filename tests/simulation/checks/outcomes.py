"""Whether a job may end with the outcome that the coordinator decided, given what the simulator knows to be true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_agent.agent.lifecycle.state import Phase
from elastic_agent.proto.endings import PREEMPTED
from elastic_agent.rendezvous.agreements import Act
from elastic_agent.rendezvous.coordinator.state import Rendezvous
from elastic_agent.rendezvous.records import Outcome

from .invariants import ASKED_FOR, CLASHING, DESERTED, PATIENT, SPENT, SUCCESS, TIMELY, UNHURRIED

if TYPE_CHECKING:
    from .checkers import Checkers

NOTICED_S = 3.0
"""From a node's death to the decision of a coordinator that has read its last heartbeat since, beyond a lease."""
SETTLED_S = 12.0
"""After the last fault or join, until the coordinator has noticed it."""


def succeeded(truth: Checkers, after: Rendezvous) -> None:
    for member in after.members:
        clean = truth.world.nodes[member.node].nursery.clean.get(after.number)
        truth.need(
            clean == member.nproc or truth.world.nodes[member.node].state.finished, SUCCESS, f"{member.name} did not"
        )


def failed(truth: Checkers, after: Rendezvous) -> None:
    ending = after.end.ending
    if ending is None:
        truth.need(False, SPENT, f"no round had ended; it closed because {after.because}")
        return
    spent = ending.charged in truth.world.nodes and truth.restarts.spent(ending.charged, ending.round)
    few = after.finishing and after.able() < truth.world.job.min_nodes
    forbidden = any(
        code in truth.world.job.restarts.no_restart_codes
        for node in truth.world.nodes.values()
        for code in node.nursery.codes.get(ending.round, ())
    )
    truth.need(spent or few or forbidden, SPENT, f"it closed because {after.because}")
    if forbidden:
        truth.world.reached.note("a worker's exit code forbade a restart")
    if few:
        truth.world.reached.note("too few remained for a restart")


def join_timed_out(truth: Checkers, after: Rendezvous) -> None:
    waited_s = truth.decided_at - truth.gathering_since
    truth.need(waited_s >= truth.world.job.join_timeout_s - 1e-6, UNHURRIED, f"it was {waited_s:.1f} s")
    if truth.world.now - truth.last_fault > SETTLED_S:
        here = [n.ident for n in truth.world.nodes.values() if truth.fit(n) and n.state.phase is Phase.JOINING]
        truth.need(len(here) < truth.world.job.min_nodes, TIMELY, f"{here} were there")


def abandoned(truth: Checkers, after: Rendezvous) -> None:
    if truth.world.now - truth.last_fault > SETTLED_S:
        able = [n.ident for n in truth.world.nodes.values() if truth.fit(n) and not n.state.finished]
        going = {Phase.STOPPING, Phase.ENDING}
        able = [name for name in able if truth.world.nodes[name].state.phase not in going]
        job, done = truth.world.job, sum(node.state.finished for node in truth.world.nodes.values() if truth.fit(node))
        used_up = after.finishing and len(able) < job.min_nodes and job.max_nodes - done < job.min_nodes
        truth.need(not able or used_up, DESERTED, f"{able} could go on")


def unfinished(truth: Checkers, after: Rendezvous) -> None:
    first = truth.first_finish
    waited = first is not None and truth.world.now - first >= truth.world.job.exit_barrier_s - 1e-6
    truth.need(waited, PATIENT, f"the first finished at {first}, it is {truth.world.now}")


def misconfigured(truth: Checkers, after: Rendezvous) -> None:
    job = truth.world.job
    since = truth.decided_at - job.lease_s - NOTICED_S
    alive = [node for node in truth.world.nodes.values() if node.gone_at >= since]
    claims = [(node.rules.preferred_rank, node.joined_at, node.gone_at) for node in alive]
    fits = all(rank is not None and rank < job.max_nodes for rank, _, _ in claims)
    rivals = any(
        rank == other and later < gone_at
        for at, (rank, _, gone_at) in enumerate(claims)
        for other, later, _ in claims[at + 1 :]  # in the order in which they joined
    )
    truth.need(not fits or rivals, CLASHING, f"all static ranks of living nodes differ: {claims}")


def preempted(truth: Checkers, after: Rendezvous) -> None:
    ending = after.end.ending
    number = ending.round if ending is not None else 0
    codes = [code for node in truth.world.nodes.values() for code in node.nursery.codes.get(number, ())]
    asked = PREEMPTED in codes or truth.agreements.was_asked_for(Act.PREEMPT)
    truth.need(asked, ASKED_FOR, f"exit codes of round {number} were {codes}")
    truth.agreements.closed(after)


def killed(truth: Checkers, after: Rendezvous) -> None:
    truth.need(truth.agreements.was_asked_for(Act.KILL), ASKED_FOR, f"it closed because {after.because}")
    truth.agreements.closed(after)


JUDGES = {
    Outcome.SUCCEEDED: succeeded,
    Outcome.FAILED: failed,
    Outcome.JOIN_TIMED_OUT: join_timed_out,
    Outcome.ABANDONED: abandoned,
    Outcome.UNFINISHED: unfinished,
    Outcome.MISCONFIGURED: misconfigured,
    Outcome.PREEMPTED: preempted,
    Outcome.KILLED: killed,
}
