"""What all ranks do at one step boundary: this node's requests, and its part in the agreement. Pure."""

from __future__ import annotations

from ...proto.frozen import replace
from ...rendezvous.agreements import DOES, MAX_SAVES, Act, Agreement, Answer, Request
from ...rendezvous.records import NodeState, Round
from . import transitions
from .events import ActAsked, Acted, AskBound, BoundAwaited, BoundFound, DecideWorkers, Effect, ReleaseWorkers
from .state import Node, Phase, Rules
from .transitions import Move


def on_asked(node: Node, event: ActAsked, now: float, rules: Rules) -> Move:
    return ask(node, event.act, event.label, event.because, now, rules)


def ask(node: Node, act: Act, label: str, because: str, now: float, rules: Rules) -> Move:
    """Ask all ranks for it, by this node's record. It stands there until it is done, also in a later round."""
    if any((request.act, request.label) == (act, label) for request in node.requests):
        return node, ()
    if act is Act.SAVE and too_many_saves(node, label):
        because = f"{because}: not asked for, as {MAX_SAVES} checkpoints that were asked for before are not made yet"
        return replace(node, because=because), ()
    request = Request(node.requested + 1, act, label, because)
    node = replace(node, requests=(*node.requests, request), requested=request.number)
    return _published(node, now, rules, because)


def too_many_saves(node: Node, label: str) -> bool:
    """Whether a checkpoint with this label cannot be asked for, as others are waited for."""
    saves = [request.label for request in node.requests if request.act is Act.SAVE]
    return label not in saves and len(saves) >= MAX_SAVES


def follow(node: Node, seen: Round, now: float, rules: Rules) -> Move:
    """The round goes on with this node: take the next step of its agreement, if there is one."""
    agreement, known = seen.agreement, node.agreement
    if agreement is None or agreement == known or agreement.round != node.round:
        return without_served(node, seen, rules), ()
    node, published = _republished(node, without_served(node, seen, rules), now, rules)
    node = replace(node, agreement=agreement)
    if known is None or known.number != agreement.number:
        # Only the newest announcement is read, so the end of an earlier agreement of this round may be missed.
        released = (ReleaseWorkers(known.number),) if known is not None and known.round == agreement.round else ()
        if agreement.over:
            # Workers of this node may wait for what they asked for, though nobody asked them for a bound.
            if not agreement.given_up:
                return node, (*released, *published)
            node = replace(node, because=_given_up(agreement))
            return node, (*released, DecideWorkers(agreement), *published)
        return node, (*released, *published, AskBound(agreement))
    effects: tuple[Effect, ...] = ()
    if agreement.at and not known.at:
        because = f"all ranks {DOES[agreement.act]} at boundary {agreement.at}: {agreement.because}"
        node, effects = replace(node, because=because), (DecideWorkers(agreement),)
    if agreement.given_up:
        node, effects = replace(node, because=_given_up(agreement)), (DecideWorkers(agreement),)
    if agreement.over:
        effects = (*effects, ReleaseWorkers(agreement.number))
    return node, (*effects, *published)


def _given_up(agreement: Agreement) -> str:
    what = "nothing was restarted" if agreement.act is Act.RESTART else "nothing was saved"
    return f"not every worker has made its Run of elastic_agent.worker, so {what}: {agreement.because}"


def on_bound(node: Node, event: BoundFound, now: float, rules: Rules) -> Move:
    return _answer(node, Answer(event.agreement, event.bound), now, rules)


def on_acted(node: Node, event: Acted, now: float, rules: Rules) -> Move:
    bound = node.answer.bound if node.answer is not None else 0
    return _answer(node, Answer(event.agreement, bound, done=True), now, rules)


def on_bound_awaited(node: Node, event: BoundAwaited, now: float, rules: Rules) -> Move:
    ranks = ", ".join(map(str, event.local_ranks))
    because = f"a checkpoint was asked for: waiting for local ranks {ranks} to make a Run of elastic_agent.worker"
    return replace(node, because=because), ()


def _answer(node: Node, answer: Answer, now: float, rules: Rules) -> Move:
    if node.agreement is None or node.agreement.number != answer.agreement:
        return node, ()
    because = node.record.because if node.record is not None else node.because
    answered, effects = transitions.publish(replace(node, answer=answer), rules, now, NodeState.WORKING, because)
    return replace(answered, because=node.because), effects


def without_served(node: Node, seen: Round, rules: Rules) -> Node:
    """The node without those of its requests that are done, or given up. Its next record shows that."""
    if not seen.served or not node.requests:
        return node
    served = {number for name, number in seen.served if name == rules.node}
    return replace(node, requests=tuple(request for request in node.requests if request.number not in served))


def _republished(before: Node, node: Node, now: float, rules: Rules) -> Move:
    if node.requests == before.requests:
        return node, ()
    published, effects = _published(node, now, rules, node.because)
    return replace(published, because=node.because), effects


def _published(node: Node, now: float, rules: Rules, because: str) -> Move:
    """The node with its last record, and what has changed; at once where that record stands, else with the next."""
    record = node.record
    if record is None or (node.phase is Phase.JOINING and not node.place.ready):
        return replace(node, because=because), ()
    return transitions.publish(node, rules, now, record.state, because)
