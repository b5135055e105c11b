"""Sentences for people about what the coordinator sees."""

from __future__ import annotations

from collections.abc import Iterable

from ..text import count
from .state import Rendezvous, Rules, Seen


def names(seen: Iterable[Seen]) -> str:
    """Names of nodes, for a sentence."""
    return ", ".join(sorted(each.record.name for each in seen)) or "nobody"


def leadership(state: Rendezvous) -> str:
    """Who coordinates from here on."""
    if not state.leading:
        return state.because
    return f"this node coordinates the job from here on (epoch {state.epoch}); round {state.number}: {state.because}"


def barrier_over(state: Rendezvous, rules: Rules) -> str:
    """Who was still working when the finalisation barrier ran out."""
    late = [seen for seen in state.nodes.values() if not seen.finished and not seen.gone]
    return f"the finalisation barrier of {rules.exit_barrier_s:g} s is over and {names(late)} had not finished"


def who_is_missing(state: Rendezvous, rules: Rules) -> str:
    """Who came and who is missing when the join timeout ran out."""
    here = state.candidates()
    gone = [seen for seen in state.nodes.values() if not seen.waiting and not seen.finished]
    missing = [f"{seen.record.name} ({'lost' if seen.lost else seen.record.state.value})" for seen in gone]
    never = rules.min_nodes - len(state.nodes)
    if never > 0:
        missing.append(f"{never} that never came")
    return (
        f"{len(here)} of at least {rules.min_nodes} nodes were here after the join timeout of "
        f"{rules.join_timeout_s:g} s: {names(here)}; missing: {', '.join(missing) or 'nobody else was ever seen'}"
    )


def too_few_remain(state: Rendezvous, rules: Rules) -> str:
    """Why a failure cannot be restarted once other nodes have finished."""
    done = names(seen for seen in state.nodes.values() if seen.finished)
    return f"{done} had already finished, and the {state.able()} that remain are fewer than min_nodes {rules.min_nodes}"


def enough(here: int, rules: Rules) -> str:
    """Why a round can begin."""
    if here >= rules.max_nodes:
        return "every place is taken"
    return f"{count(here, 'node')} here, enough for min_nodes {rules.min_nodes}"
