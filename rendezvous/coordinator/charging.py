"""Whose fault the end of a round was. Settled only when every member has answered or is known dead.

A worker that fails may only be the echo of another's death: its peer's connection broke. So the first failure seen is
not charged at once. The round is over at once, everybody is told, and every live node answers when its workers are gone
and it has said how each of them ended; a member that cannot answer has died, and then its departure was the cause and
nobody is charged. Among the ends of workers `root_cause.py` finds the cause.

Where the cause is certain already, the rest is not waited for longer than `EVIDENCE_S`: a node whose workers take their
time to stop must not keep a job from ending.
"""

from __future__ import annotations

from dataclasses import replace

from ..failures import MAX_ANNOUNCED_EXITS, Ending, EndKind, Judged, Role, WorkerFailure, charges
from ..records import Member, NodeRecord, NodeState
from . import explain, root_cause
from .state import Rendezvous, Rules, Seen

EVIDENCE_S = 1.0
"""How long members get to say how their other workers ended, once the cause is certain and all have heard of the end.
Workers that mind SIGTERM are gone sooner."""
LAST_WORDS_S = 2.0
"""How long they get where the job cannot go on whoever it was. Covers the moment in which workers may end by
themselves where an echo was seen (`Round.hold`)."""


def add_exits(state: Rendezvous, record: NodeRecord) -> Rendezvous:
    """The same, with the ends of this round's workers that this record adds."""
    if record.round != state.number or state.member(record.node) is None:
        return state
    known = {(death.node, death.local_rank, death.pid) for death in state.deaths}
    new = [death for death in record.deaths if (death.node, death.local_rank, death.pid) not in known]
    return replace(state, deaths=(*state.deaths, *new)) if new else state


def settle(state: Rendezvous, now: float) -> Rendezvous:
    """Take in the answers so far; once there are no more to come, make `ended` final."""
    ending = state.ended
    if state.settled or ending is None:
        return state
    unanswered = set(state.unanswered)
    departed = state.departed
    for member, seen in state.seen_members():
        if member.node in unanswered and (word := _answer(state, member, seen)) is not None:
            unanswered.remove(member.node)
            departed = departed or word
    state = replace(state, unanswered=frozenset(unanswered), departed=departed)
    if unanswered and not (now >= state.since + EVIDENCE_S and _needs_no_more(state, departed)):
        return state
    return replace(state, settled=True, ended=_final(state, ending, departed))


def beyond_restart(state: Rendezvous, now: float, rules: Rules) -> tuple[Rendezvous, str] | None:
    """Why the failure that ended the round cannot be answered with a restart, and the state to close with; None if it
    can, or is none. A worker that forbids it is heard whichever failure was seen first, and costs nobody anything."""
    ending = state.ended
    for _, seen in state.seen_members():
        failure = seen.record.failure
        if ending is not None and failure is not None and failure.final and seen.record.round == state.number:
            exits = f"exit code {failure.exit_code} forbids a restart there (--no-restart-codes)"
            return _forbidden(state, failure), f"worker failed: {failure}; {exits}"
    if ending is None:
        return None
    if ending.kind is EndKind.FAILURE and state.finishing and state.able() < rules.min_nodes:
        if state.settled or now >= state.since + LAST_WORDS_S:
            told = _uncharged(state, ending)
            return replace(state, ended=told), f"{told.because}; {explain.too_few_remain(state, rules)}"
        return None
    if state.settled and (name := node_out_of_restarts(state)):
        there = "there" if ending.failure is not None and ending.failure.node == name else f"on {name}"
        return state, f"{ending.because}; no restarts are left {there}"
    return None


def _forbidden(state: Rendezvous, failure: WorkerFailure) -> Rendezvous:
    cause = next((death for death in state.deaths if death == failure), failure)
    judgement = root_cause.Judgement(cause, Role.CAUSE, f"its exit code {cause.exit_code} forbids a restart")
    judged = _kept(root_cause.roles(state.deaths, judgement), cause)
    because = f"worker failed: {failure}"
    ending = Ending(state.number, EndKind.FAILURE, because, "", cause, Role.CAUSE, judged)
    return replace(state, ended=ending, settled=True)


def _uncharged(state: Rendezvous, ending: Ending) -> Ending:
    """The ending, charging nobody as long as it is not settled: a job that cannot go on does not wait for long to learn
    whose fault it was, and must not say that it knows."""
    return ending if state.settled else replace(_judged(state, ending), charged="")


def evidence_until(state: Rendezvous) -> tuple[float, ...]:
    """When the ending may be settled, or the job closed, without those who have not told all."""
    return () if state.settled else (state.since + EVIDENCE_S, state.since + LAST_WORDS_S)


def node_out_of_restarts(state: Rendezvous) -> str:
    """Name of a node that the settled ending costs a restart that it does not have; empty if there is none."""
    ending = state.ended
    for member, seen in state.seen_members():
        record = seen.record
        charged = ending is not None and ending.charged == member.node
        counts_itself = record.charge_local and charges(record.failure) and record.round == state.number
        if (charged or counts_itself) and record.restarts_left <= 0 and not seen.gone:
            return member.name
    return ""


def _needs_no_more(state: Rendezvous, departed: str) -> bool:
    """Every member has heard of the end and is alive, and what is known already says who it was."""
    heard_of_it = all(
        seen.finished or seen.record.round > state.number or seen.record.state is not NodeState.WORKING
        for _, seen in state.seen_members()
    )
    return heard_of_it and not departed and root_cause.judge(state.deaths, complete=False).role is Role.CAUSE


def _answer(state: Rendezvous, member: Member, seen: Seen) -> str | None:
    """None: no answer yet. Otherwise, in words, how the member departed; empty if it did not."""
    if seen.finished:
        return ""
    if seen.lost:
        return f"{member.name} was lost"
    record = seen.record
    if record.state in (NodeState.LEAVING, NodeState.ENDED):
        return f"{member.name} left: {record.because}"
    if record.round < state.number or not (record.all_exits_reported or record.state is NodeState.WAITING):
        return None
    return ""


def _final(state: Rendezvous, ending: Ending, departed: str) -> Ending:
    if ending.kind is not EndKind.FAILURE:
        return ending
    if departed:
        because = f"{departed}; then {ending.because}"
        judged = _kept(root_cause.echoes_of_departure(state.deaths), None)
        return replace(ending, kind=EndKind.DEPARTURE, charged="", because=because, judged=judged)
    return _judged(state, ending)


def _judged(state: Rendezvous, ending: Ending) -> Ending:
    """The ending with its cause, as far as is known now."""
    judgement = root_cause.judge(state.deaths, complete=not state.unanswered)
    cause = judgement.cause
    if ending.kind is not EndKind.FAILURE or cause is None:
        return ending
    certainty = "the cause" if judgement.role is Role.CAUSE else "probably"
    reason = _beside_the_error(judgement.because, cause)
    because = f"worker failed: {cause}" + (f"; {certainty}: {reason}" if reason else "")
    home = next((member.node for member in state.members if _lived(cause, member)), ending.charged)
    home = home if charges(cause) else ""
    judged = _kept(root_cause.roles(state.deaths, judgement), cause)
    return replace(ending, failure=cause, role=judgement.role, charged=home, because=because, judged=judged)


def _beside_the_error(because: str, cause: WorkerFailure) -> str:
    """The judgement without its beginning `raised ValueError: boom`, if the failure's own sentence has that error."""
    error = cause.sign_because.partition(" ")[2]
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
