"""This machine fails: the process that owns the workers dies, and they with it. Pure.

Not the script's fault, so it costs no restart; but where it happens again and again, the node leaves (`moves.lose`).
"""

from __future__ import annotations

from dataclasses import replace

from ...rendezvous.records import NodeState, Sign, WorkerFailure
from . import handlers, transitions
from .events import NurseryLost, RestartNursery, WorkersGone
from .state import Node, Rules
from .transitions import Move


def on_nursery_lost(node: Node, event: NurseryLost, now: float, rules: Rules) -> Move:
    """The round is over as with any failure of our workers."""
    because = f"a failure of this machine, not of the script: {_died(event)}, and they with it"
    local_rank = min(node.running, default=0)
    member = node.seen.member(rules.node) if node.seen is not None else None
    rank = (member.rank_offset if member is not None else 0) + local_rank
    failure = WorkerFailure(
        rules.name, node.addr, rank, local_rank, 0, -9, because, sign=Sign.MACHINE, sign_because="died with its nursery"
    )
    node = transitions.fail(replace(node, running=frozenset()), rules, now, failure)
    if node.verdict is not None:
        return transitions.end(node, rules, now, node.verdict)
    broken, said = transitions.publish(node, rules, now, NodeState.BROKEN, f"worker failed: {failure}")
    joining, effects = transitions.rejoin(broken, rules, now, because)
    return joining, (RestartNursery(), *said, *effects)


def on_nursery_lost_while_stopping(node: Node, event: NurseryLost, now: float, rules: Rules) -> Move:
    """What we meant to stop is gone, one way or the other."""
    counted = node if node.finished else transitions.lose(node, rules, now, _died(event))
    after, effects = handlers.on_gone(counted, WorkersGone(), now, rules)
    return after, effects if after.verdict is not None else (RestartNursery(), *effects)


def on_nursery_lost_at_rest(node: Node, event: NurseryLost, now: float, rules: Rules) -> Move:
    """No worker ran."""
    node = transitions.lose(node, rules, now, _died(event))
    return (node, (RestartNursery(),)) if node.verdict is None else transitions.end(node, rules, now, node.verdict)


def _died(event: NurseryLost) -> str:
    return f"the process that owns the workers died ({event.reason})"
