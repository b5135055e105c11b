"""How far workers are, as an agent reports it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from elastic_agent.agent.steps.seen import Shown
from elastic_agent.control.service.describe import workers_of
from elastic_agent.control.service.process_files import ProcessFiles
from elastic_agent.proto.progress import Progress


def test_steps_are_those_of_the_run_over_restarts_with_or_without_watches() -> None:
    """What is watched counts the steps of one process; a worker that has made no Run yet shows what is known, and that
    it imports, where one of its job has made one."""
    counted = (Shown(steps=1015, began_s=1.0), Shown(steps=0), Shown(steps=1014, began_s=1.0))
    steps = SimpleNamespace(shown=lambda: counted)
    pids = dict.fromkeys(range(3), os.getpid())
    workers = SimpleNamespace(member=SimpleNamespace(rank_offset=4), steps=steps, alive=pids, pids=pids, written={},
                              round_logs=None, started_s={})  # fmt: skip
    agent: Any = SimpleNamespace(workers=workers, name="node1", status=lambda: SimpleNamespace(round=2))
    progress: Any = {rank: SimpleNamespace(steps=167, section="step", at_s=0.0) for rank in (4, 5)}
    found: dict[int, Progress] = progress
    files = ProcessFiles()
    assert [each.steps for each in workers_of(agent, found, files).workers] == [1015, 167, 1014]
    assert [each.importing for each in workers_of(agent, found, files).workers] == [False] * 3
    assert [each.importing for each in workers_of(agent, found, files, measured=True).workers] == [False, True, False]
    files.close()
