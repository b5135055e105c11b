"""Whose fault the end of a round was, and which node it charges. Settled when every member has answered or is lost.

A worker that fails may only be the echo of another failure: its peer's connection broke. So the first failure seen is
not charged at once. The round is over at once, all nodes stop their workers, and each live node answers when its
workers are gone and its record lists how each of them ended. A member that cannot answer has died; then its departure
was the cause and no node is charged. Among the exits of workers `root_cause.py` finds the cause.

Where the cause is certain already, the rest is not waited for longer than `EVIDENCE_S`: a node whose workers take their
time to stop must not keep a job from ending.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...proto.frozen import replace
from ..failures import MAX_ANNOUNCED_EXITS, Ending, EndKind, Judged, Role, WorkerFailure, charges, preempts
from ..records import Member, NodeRecord
from . import explain, root_cause
from .nodes import ANSWERS, CHARGES, ENDED, LEAVING, WAITING, WORKING, Seen
from .state import Rendezvous, Rules

EVIDENCE_S = 1.0
"""How long members get to report how their other workers ended, once the cause is certain and all have received the
end. Workers that handle SIGTERM are gone sooner."""
LAST_REPORTS_S = 2.0
"""How long they get where the job cannot go on, whatever the cause. Longer than workers may end by themselves where an
echo was seen (`Round.hold`)."""


def add_exits(state: Rendezvous, records: Iterable[NodeRecord]) -> Rendezvous:
    """The state with the exits of this round's workers that these records, the newest of their nodes, add."""
    placement = state.placement
    forbidding: set[str] = set()
    known: dict[str, frozenset[tuple[int, int]]] = {}
    found: list[WorkerFailure] = []
    for record in records:
        node, failure = record.node, record.failure
        if record.round != state.number or not (record.deaths or failure) or not placement.members:
            continue
        if state.nodes[node].placed != state.number:  # it is no member
            continue
        if failure is not None and failure.final and node not in placement.forbidding:
            forbidding.add(node)
        # Compared with those of this node only: with those of all nodes, thousands of records would take minutes.
        before = placement.known.get(node, frozenset())
        new = [death for death in record.deaths if (death.local_rank, death.pid) not in before]
        if new:
            known[node] = before.union((death.local_rank, death.pid) for death in new)
            found += new
    if not (found or forbidding):
        return state
    placement = replace(
        placement,
        forbidding=placement.forbidding | forbidding,
        deaths=(*placement.deaths, *found),
        known={**placement.known, **known},
        evidence=placement.evidence.with_exits(found),
    )
    return replace(state, placement=placement)


def settle(state: Rendezvous, now: float, rules: Rules) -> Rendezvous:
    """Take in the answers so far; once there are no more to come, make the ending final."""
    end, ending = state.end, state.end.ending
    if end.settled or ending is None:
        return state
    unanswered, departed = end.unanswered, end.departed
    answered: list[str] = []
    for member, seen in state.seen_among(unanswered.intersection(state.nodes.those(ANSWERS))):
        answer = _answer(state, member, seen, now, rules)
        if answer is not None:
            answered.append(member.node)
            departed = departed or answer
    if answered:
        unanswered = unanswered.difference(answered)
        end = replace(end, unanswered=unanswered, departed=departed)
        state = replace(state, end=end)
    if unanswered and not (now >= state.since + EVIDENCE_S and _needs_no_more(state, departed)):
        return state
    return replace(state, end=replace(end, settled=True, ending=_final(state, ending, departed)))


def beyond_restart(state: Rendezvous, now: float, rules: Rules) -> tuple[Rendezvous, str] | None:
    """Why the failure that ended the round cannot be answered with a restart, and the state to close with; None if it
    can, or is none. A worker that forbids a restart decides, whichever failure was seen first, and charges no node."""
    end = state.end
    ending = end.ending
    for _, seen in state.seen_among(state.placement.forbidding):
        failure = seen.record.failure
        if ending is not None and failure is not None and failure.final and seen.record.round == state.number:
            exits = f"exit code {failure.exit_code} forbids a restart there (--no-restart-codes)"
            return _forbidden(state, failure), f"worker failed: {failure}; {exits}"
    if ending is None or ending.kind is EndKind.PREEMPTION:
        return None
    if ending.kind is EndKind.FAILURE and state.too_few_remain(rules):
        if end.settled or now >= state.since + LAST_REPORTS_S:
            final = _uncharged(state, ending)
            closing = replace(state, end=replace(end, ending=final))
            return closing, f"{final.because}; {explain.too_few_remain(state, rules)}"
        return None
    if end.settled and (name := node_out_of_restarts(state)):
        there = "there" if ending.failure is not None and ending.failure.node == name else f"on {name}"
        return state, f"{ending.because}; no restarts are left {there}"
    return None


def _forbidden(state: Rendezvous, failure: WorkerFailure) -> Rendezvous:
    deaths = state.placement.deaths
    cause = next((death for death in deaths if death == failure), failure)
    judgement = root_cause.Judgement(cause, Role.CAUSE, f"its exit code {cause.exit_code} forbids a restart")
    judged = _kept(root_cause.roles(deaths, judgement), cause)
    because = f"worker failed: {failure}"
    ending = Ending(state.number, EndKind.FAILURE, because, "", cause, Role.CAUSE, judged)
    return replace(state, end=replace(state.end, ending=ending, settled=True))


def _uncharged(state: Rendezvous, ending: Ending) -> Ending:
    """The ending, which charges no node while it is not settled: a job that cannot go on does not wait long for the
    cause, and must not claim to know it."""
    return ending if state.end.settled else replace(_judged(state, ending), charged="")


def preemption(number: int, asked: WorkerFailure) -> Ending:
    """How that round ends where a worker asked for the end of the job. It charges no node, and no exit was a cause."""
    because = f"rank {asked.rank} on {asked.node} asked for the end by exit code {asked.exit_code}"
    return Ending(number, EndKind.PREEMPTION, f"{because}; start the job again to go on")


def evidence_until(state: Rendezvous) -> tuple[float, ...]:
    """When the ending may be settled, or the job closed, without members that have not reported all."""
    return () if state.end.settled else (state.since + EVIDENCE_S, state.since + LAST_REPORTS_S)


def node_out_of_restarts(state: Rendezvous) -> str:
    """Name of a node that the settled ending charges a restart that it does not have; empty if there is none."""
    ending = state.end.ending
    for member, seen in state.seen_among({*state.nodes.those(CHARGES), ending.charged if ending is not None else ""}):
        record = seen.record
        charged = ending is not None and ending.charged == member.node
        counts_itself = record.charge_local and charges(record.failure) and record.round == state.number
        if (charged or counts_itself) and record.restarts_left <= 0 and not seen.gone:
            return member.name
    return ""


def _needs_no_more(state: Rendezvous, departed: str) -> bool:
    """Every member has received the end of the round and is alive, and the cause is certain from what is known."""
    return (
        not departed
        and state.placement.evidence.certain
        and all(
            seen.finished
            or seen.record.round > state.number
            or (seen.record.round == state.number and seen.record.state is not WORKING)
            for _, seen in state.seen_members()
        )
    )


def _answer(state: Rendezvous, member: Member, seen: Seen, now: float, rules: Rules) -> str | None:
    """How the member departed, in words; empty if it did not; None without an answer yet."""
    if seen.finished:
        return ""
    if seen.lost:
        return explain.lost(seen, now, rules)
    record = seen.record
    if record.state in (LEAVING, ENDED):
        return f"{member.name} left: {record.because}"
    if record.round < state.number or not (record.all_exits_reported or record.state is WAITING):
        return None
    return ""


def _final(state: Rendezvous, ending: Ending, departed: str) -> Ending:
    if ending.kind is not EndKind.FAILURE:
        return ending
    if asked := next(filter(preempts, state.placement.deaths), None):
        return preemption(state.number, asked)  # what was seen first was the echo of that
    if departed:
        because = f"{departed}; then {ending.because}"
        judged = _kept(root_cause.echoes_of_departure(state.placement.deaths), None)
        return replace(ending, kind=EndKind.DEPARTURE, charged="", because=because, judged=judged)
    return _judged(state, ending)


def _judged(state: Rendezvous, ending: Ending) -> Ending:
    """The ending with its cause, as far as is known now."""
    deaths = state.placement.deaths
    judgement = root_cause.judge(deaths, complete=not state.end.unanswered)
    cause = judgement.cause
    if ending.kind is not EndKind.FAILURE or cause is None:
        return ending
    certainty = "the cause" if judgement.role is Role.CAUSE else "probably"
    reason = _beside_the_error(judgement.because, cause)
    because = f"worker failed: {cause}" + (f"; {certainty}: {reason}" if reason else "")
    home = next((member.node for member in state.members if _lived(cause, member)), ending.charged)
    home = home if charges(cause) else ""
    judged = _kept(root_cause.roles(deaths, judgement), cause)
    return replace(ending, failure=cause, role=judgement.role, charged=home, because=because, judged=judged)


def _beside_the_error(because: str, cause: WorkerFailure) -> str:
    """The judgement without its beginning `raised ValueError: boom`, if the failure's own sentence has that error. The
    judgement's may be shortened, and then ends in `...`."""
    error = cause.sign_because.partition(" ")[2].removesuffix("...").rstrip()
    if error and cause.message.startswith(error):
        return because.removeprefix(cause.sign_because).lstrip(";, ")
    return because


def _lived(death: WorkerFailure, member: Member) -> bool:
    return member.rank_offset <= death.rank < member.rank_offset + member.nproc


def _kept(judged: tuple[Judged, ...], cause: WorkerFailure | None) -> tuple[Judged, ...]:
    """The first `MAX_ANNOUNCED_EXITS`, the cause among them. Of the text of all others only the evidence is kept."""
    first = [each for each in judged if each.death is cause] + [each for each in judged if each.death is not cause]
    kept = {id(each) for each in first[:MAX_ANNOUNCED_EXITS]}
    return tuple(
        each if each.death is cause else replace(each, death=replace(each.death, said=each.death.sign_because))
        for each in judged
        if id(each) in kept
    )
