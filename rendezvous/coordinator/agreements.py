"""The coordinator's part in an agreement: when one begins, which boundary it gets, when it is over. Pure."""

from __future__ import annotations

from ...proto.frozen import replace
from ..agreements import HOLDS, MAX_SERVED, STOPS, URGENCY, Act, Agreement, Answer, Request
from ..failures import Ending, EndKind
from ..records import NodeRecord
from .nodes import Seen
from .state import RUNNING, Rendezvous, Rules


def advance(state: Rendezvous, now: float, rules: Rules) -> Rendezvous:
    """The running round with its agreement one stage further, if it is time for that."""
    agreement = of_round(state)
    if agreement is None or agreement.over:
        return _begin(state, now) if stopping(state) is None else state
    if not agreement.at and _overtaken(state, agreement):
        return _begin(state, now)
    if _limited(state, agreement) and now >= _until(state, rules):
        return _over(state, agreement)
    answers = _answers(state, agreement)
    if any(answer is not None and not answer.bound for answer in answers):
        return _over(state, replace(agreement, at=0))
    if any(answer is None for answer in answers):
        return state
    known = [answer for answer in answers if answer is not None]
    if not agreement.at and known:
        return replace(state, agreement=replace(agreement, at=max(answer.bound for answer in known)), agreed_at=now)
    return _over(state, agreement) if all(answer.done for answer in known) else state


def deadline(state: Rendezvous, rules: Rules) -> float | None:
    """When an agreement is over although not all have acted; None: it has no limit, or there is none."""
    agreement = of_round(state)
    if state.phase is not RUNNING or agreement is None:
        return None
    if agreement.act in STOPS or (not agreement.over and _limited(state, agreement)):
        return _until(state, rules)
    return None


def dropped(state: Rendezvous) -> Rendezvous:
    """The state at the end of a round: boundaries are of one round. What was asked for is asked for still."""
    agreement = state.agreement
    if agreement is None or agreement.over:
        return state
    return replace(state, agreement=None)


def pending(state: Rendezvous, act: Act) -> Request | None:
    """A request of this act that no agreement has served."""
    return next((request for _, request in _unserved(state) if request.act is act), None)


def stopping(state: Rendezvous) -> Agreement | None:
    """The agreement by which the workers of the round are to exit."""
    agreement = of_round(state)
    return agreement if agreement is not None and agreement.act in STOPS else None


def of_round(state: Rendezvous) -> Agreement | None:
    """The newest agreement of this round."""
    agreement = state.agreement
    return agreement if agreement is not None and agreement.round == state.number else None


def why_stopped(state: Rendezvous, ending: Ending | None, now: float, rules: Rules) -> str | None:
    """Why workers that were to exit by an agreement are waited for no longer, if so."""
    agreement = state.agreement
    if agreement is None:
        return None
    if ending is not None and ending.kind is not EndKind.ARRIVAL:
        return f"{agreement.because}; meanwhile {ending.because}"
    if agreement.given_up:
        return f"{agreement.because}; no checkpoint was asked for: not every worker calls run.step()"
    if all(seen.finished for _, seen in state.seen_members()):
        return f"{agreement.because}; all workers exited 0"
    if now >= _until(state, rules):
        return f"{agreement.because}; workers have not exited {rules.settle_s:g} s later"
    return None


def settle(state: Rendezvous, now: float, because: str) -> Rendezvous:
    """The running round, of which all workers are to save and wait, as it is about to end. What was agreed on before
    that, and has a boundary, comes first."""
    agreement = of_round(state)
    if agreement is not None and not agreement.over and (agreement.at or agreement.act in HOLDS):
        return state
    agreement = Agreement(state.version + 1, Act.SETTLE, because=because, round=state.number)
    return replace(state, agreement=agreement, agreed_at=now)


def acted(before: Rendezvous, state: Rendezvous) -> Agreement | None:
    """The agreement that has come to be over since. It stays in the state, also in the next round."""
    agreement, known = state.agreement, before.agreement
    if agreement is None or not agreement.over:
        return None
    return None if known is not None and known.over and known.number == agreement.number else agreement


def _begin(state: Rendezvous, now: float) -> Rendezvous:
    found = _most_urgent(state)
    if found is None:
        return state
    first = found[1]
    served = tuple(
        (node, request.number)
        for node, request in _unserved(state)
        if (request.act, request.label) == (first.act, first.label)
    )
    agreement = Agreement(
        state.version + 1, first.act, first.label, first.because, requests=served[:MAX_SERVED], round=state.number
    )
    return replace(state, agreement=agreement, agreed_at=now)


def _over(state: Rendezvous, agreement: Agreement) -> Rendezvous:
    served = state.served.union(agreement.requests)
    return replace(state, agreement=replace(agreement, over=True), served=served)


def recorded(state: Rendezvous, record: NodeRecord) -> Rendezvous:
    """The state with this new record's requests: who asks, and what of that was served."""
    node, numbers = record.node, {request.number for request in record.requests}
    if bool(numbers) != (node in state.asking):
        state = replace(state, asking=state.asking ^ {node})
    if not state.served:
        return state
    served = frozenset((name, number) for name, number in state.served if name != node or number in numbers)
    return state if served == state.served else replace(state, served=served)


def _most_urgent(state: Rendezvous) -> tuple[str, Request] | None:
    return max(_unserved(state), key=lambda found: URGENCY[found[1].act], default=None)


def _unserved(state: Rendezvous) -> list[tuple[str, Request]]:
    return [
        (node, request)
        for node in sorted(state.asking)
        if not state.nodes[node].lost
        for request in state.nodes[node].record.requests
        if (node, request.number) not in state.served
        and (request.act is not Act.SETTLE or _leaves(state, state.nodes[node]))
    ]


def _leaves(state: Rendezvous, seen: Seen) -> bool:
    """Whether a node that asks all to settle is still to leave this round."""
    return not seen.gone and seen.record.round == state.number


def _answers(state: Rendezvous, agreement: Agreement) -> list[Answer | None]:
    """Of the members that have not finished: nothing is left to agree on with workers that exited 0."""
    answers = [seen.record.answer for _, seen in state.seen_members() if not seen.finished]
    return [answer if answer and answer.agreement == agreement.number else None for answer in answers]


def _overtaken(state: Rendezvous, agreement: Agreement) -> bool:
    """Whether something more urgent is asked for."""
    found = _most_urgent(state)
    return found is not None and URGENCY[found[1].act] > URGENCY[agreement.act]


def _limited(state: Rendezvous, agreement: Agreement) -> bool:
    """Whether it is waited for only so long: nothing waits for a save, unless something else is asked for."""
    return agreement.act is not Act.SAVE or _overtaken(state, agreement)


def _until(state: Rendezvous, rules: Rules) -> float:
    return state.agreed_at + rules.settle_s
