"""Whose fault the end of a round was. Settled only when every member has answered or is known dead.

A worker that fails may only be the echo of another's death: its peer's connection broke. So the first failure seen is
not charged at once. The round is over at once, everybody is told, and every live node answers at once; a member that
cannot answer has died, and then its departure was the cause and nobody is charged. Among failures the first one seen is
the cause.
"""

from __future__ import annotations

from dataclasses import replace

from . import explain
from .records import Ending, EndKind, Member, NodeState
from .state import Rendezvous, Rules, Seen


def settle(state: Rendezvous) -> Rendezvous:
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
    return state if unanswered else replace(state, settled=True, ended=_final(ending, departed))


def beyond_restart(state: Rendezvous, rules: Rules) -> tuple[Rendezvous, str] | None:
    """Why the failure that ended the round cannot be answered with a restart, and the state to close with; None if it
    can, or is none. A worker that forbids it is heard whichever failure was seen first, and costs nobody anything."""
    ending = state.ended
    for _, seen in state.seen_members():
        failure = seen.record.failure
        if ending is not None and failure is not None and failure.final and seen.record.round == state.number:
            because = f"worker failed: {failure}"
            forbidden = Ending(state.number, EndKind.FAILURE, because, "", failure)
            exits = f"exit code {failure.exit_code} forbids a restart there (--no-restart-codes)"
            return replace(state, ended=forbidden, settled=True), f"{because}; {exits}"
    if ending is None or ending.kind is not EndKind.FAILURE:
        return None
    if state.finishing and state.able() < rules.min_nodes:
        return _uncharged(state), f"{ending.because}; {explain.too_few_remain(state, rules)}"
    if state.settled and ending.charged and state.nodes[ending.charged].record.restarts_left <= 0:
        return state, f"{ending.because}; no restarts are left there"
    return None


def _uncharged(state: Rendezvous) -> Rendezvous:
    """The same, charging nobody as long as the ending is not settled: a job that cannot go on ends without waiting to
    learn whose fault it was, and must not say that it knows."""
    if state.settled or state.ended is None:
        return state
    return replace(state, ended=replace(state.ended, charged=""))


def _answer(state: Rendezvous, member: Member, seen: Seen) -> str | None:
    """None: no answer yet. Otherwise, in words, how the member departed; empty if it did not."""
    if seen.finished:
        return ""
    if seen.lost:
        return f"{member.name} was lost"
    record = seen.record
    if record.state in (NodeState.LEAVING, NodeState.ENDED):
        return f"{member.name} left: {record.because}"
    if record.state is NodeState.WORKING or record.round < state.number:
        return None
    return ""


def _final(ending: Ending, departed: str) -> Ending:
    if ending.kind is not EndKind.FAILURE or not departed:
        return ending
    return replace(ending, kind=EndKind.DEPARTURE, charged="", because=f"{departed}; then {ending.because}")
