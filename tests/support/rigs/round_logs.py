"""A round's logs, opened and written to as a worker does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from elastic_agent.agent.errors import HostFailed
from elastic_agent.agent.output.log_dirs import JobLogs
from elastic_agent.agent.output.round_logs import RoundLogs
from support.consoles import FINISH_S

Begin = Callable[..., JobLogs]


def open_round(logs: JobLogs, nproc: int = 1, number: int = 1, restarts: int = 0) -> RoundLogs:
    """A round with all of its streams open."""
    ranks = {local: 10 + local for local in range(nproc)}
    attempt = logs.open_round(number, restarts, ranks, "default", "nodehost")
    try:
        for local in ranks:
            attempt.stdio(local)
    except HostFailed:
        attempt.finish(0.0)
        raise
    return attempt


def run(logs: RoundLogs, code: str, timeout_s: float = FINISH_S) -> bool:
    """Run `code` as each worker, to its exit; its local rank is argv[1]. Returns what `finish` returns."""
    workers = []
    for local_rank in logs.error_files:
        out, err = logs.stdio(local_rank)
        workers.append(subprocess.Popen([sys.executable, "-c", code, str(local_rank)], stdout=out, stderr=err))
    logs.close_worker_ends()
    assert [worker.wait(FINISH_S) for worker in workers] == [0] * len(workers)
    return logs.finish(timeout_s)
