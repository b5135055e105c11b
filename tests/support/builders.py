"""What unit tests of the two machines are made of: failures, records, announcements, and reading them."""

from __future__ import annotations

from dataclasses import replace

from elastic_agent.agent.lifecycle.restart_policy import Charge, History
from elastic_agent.rendezvous.coordinator import machine
from elastic_agent.rendezvous.coordinator.events import NodeSeen
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules
from elastic_agent.rendezvous.failures import Ending, Sign, WorkerFailure
from elastic_agent.rendezvous.records import Member, NodeRecord, NodeState, Outcome, Round, RoundPhase

FAILURE = WorkerFailure(node="a", host="h", rank=0, local_rank=0, pid=1, exit_code=1)
FINAL = replace(FAILURE, rank=1, local_rank=1, exit_code=93, final=True)
"""A failure whose exit code forbids a restart."""


def worker_exit(rank: int, sign: Sign, **fields: object) -> WorkerFailure:
    """The exit of a worker, with exit code 1; ranks 0 and 1 are on node a, 2 and 3 on node b."""
    node = "ab"[rank // 2]
    failure = WorkerFailure(node, node, rank, rank % 2, 100 + rank, 1, sign=sign, sign_because=f"is {sign.value}")
    for name, value in fields.items():
        object.__setattr__(failure, name, value)
    return failure


def record(
    node: str,
    seq: int = 1,
    state: NodeState = NodeState.WAITING,
    round: int = 0,  # noqa: A002  # as the record calls it
    failure: WorkerFailure | None = None,
    *,
    restarts_left: int = 1,
    **fields: object,
) -> NodeRecord:
    """A record of this node. `finished` follows from its state; `fields` are others of NodeRecord."""
    made = NodeRecord(
        node, node, state, seq, round, addr=f"{node}.example", port=29000, failure=failure,
        restarts_left=restarts_left, finished=state is NodeState.FINISHED,
    )  # fmt: skip
    return replace(made, **fields)  # type: ignore[arg-type]


def announcement(
    phase: RoundPhase,
    number: int = 1,
    members: tuple[Member, ...] = (),
    *,
    version: int = 9,
    because: str = "so it is",
    ended: Ending | None = None,
    outcome: Outcome | None = None,
) -> Round:
    """What the coordinator of epoch 1 announces of a round."""
    return Round(version, 1, number, phase, because, members, ended=ended, outcome=outcome)


def history(*at: tuple[float, float] | float) -> History:
    """A node's history of charges: the time of each, and the length of the pause that followed it, 0 if not given."""
    recent = tuple(Charge(*charge) if isinstance(charge, tuple) else Charge(charge) for charge in at)
    return History(len(recent), recent)


def after_records(state: Rendezvous, now: float, rules: Rules, *records: NodeRecord) -> Rendezvous:
    """The coordinator's state after it has read these records, one after the other."""
    for each in records:
        state = machine.step(state, NodeSeen(each), now, rules).state
    return state
