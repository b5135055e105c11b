"""Values that many tests need, made with few arguments."""

from __future__ import annotations

from elastic_agent.rendezvous.failures import Sign, WorkerFailure


def worker_exit(rank: int, sign: Sign, **fields: object) -> WorkerFailure:
    """The exit of a worker, with exit code 1; ranks 0 and 1 are on node a, 2 and 3 on node b."""
    node = "ab"[rank // 2]
    failure = WorkerFailure(node, node, rank, rank % 2, 100 + rank, 1, sign=sign, sign_because=f"is {sign.value}")
    for name, value in fields.items():
        object.__setattr__(failure, name, value)
    return failure
