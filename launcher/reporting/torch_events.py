"""torchrun's events (torch 2.13, `torch.distributed.elastic.events`): one of each worker of this node and one of its
agent, when the job has ended.

With torch in this process they go through its `record`, to whichever handler is registered there; without, the console
is the only one that can be meant, and gets the same JSON. A handler that a program has registered gets the agent's own
events too, as they happen: rounds, restarts, outages and all else that a file of events has. torch's own handlers get
what torchrun gives them, and no more.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial

from ...agent.report import Report, Status
from .console import Console

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...control.control_socket import Service
    from ...control.stream import Entry

WORKER, AGENT = "WORKER", "AGENT"
TORCHS = ("null", "console", "dynamic_rendezvous")
"""Handlers that torch itself has registered."""
_TORCH = "torch.distributed.elastic.events"
_AGENTS = "torch.distributed.elastic.agent.server.api"


class TorchEvents:
    """The events of one job. Made when it begins, because they have its duration."""

    def __init__(self, handler: str, *, run_id: str, role: str, backend: str, title: str) -> None:
        """`handler`: as `--event-log-handler`; `title`: the entry point's name."""
        self._handler = handler
        self._facts = {"run_id": run_id, "role": role, "rdzv_backend": backend or "c10d"}
        self._title = title
        self._began_s = time.monotonic()
        self._console = Console({})

    def follow(self, name: str, service: Service) -> None:
        """Pass on the events of this service, where a program has registered the handler. name: what other nodes call
        its agent."""
        if self._handler not in TORCHS and _TORCH in sys.modules:
            service.recorders.append(partial(self._happened, name))

    def _happened(self, name: str, entry: Entry) -> None:
        from ...control.service.describe import event_of

        found = event_of(entry, name)
        facts = {each.name: getattr(found, each.name) for each in fields(found)}
        metadata = {key: value for key, value in facts.items() if isinstance(value, (str, int, float))}
        if found.ended is not None:
            metadata |= {"ended": found.ended.kind, "charged": found.ended.charged}
        events = sys.modules[_TORCH]
        events.record(
            events.Event(
                name=f"elastic_agent.{found.what}",
                source=events.EventSource.AGENT,
                timestamp=int(found.time_s * 1000),
                metadata={**metadata, "run_id": self._facts["run_id"]},
            ),
            self._handler,
        )

    def concluded(self, report: Report | None, status: Status) -> None:
        """Record the events. `report`: None if the agent failed before it could report."""
        if report is not None:
            for event in self._of_workers(report, status):
                self._record(WORKER, *event)
        stopped = report is None or report.verdict.exit_code > 128  # torch calls an agent that a signal ended failed
        self._record(AGENT, "FAILED" if stopped else "SUCCEEDED", self._metadata(report, status, None))

    def _of_workers(self, report: Report, status: Status) -> Iterator[tuple[str, dict[str, object]]]:
        member = report.member
        failures = {failure.local_rank: failure for failure in report.failures}
        for local_rank in range(member.nproc if member else 0):
            failure = failures.get(local_rank)
            state = "SUCCEEDED" if report.ranks else "FAILED" if failure else "TERMINATED"
            said = report.reports.get(failure) if failure else None
            yield (
                state,
                {
                    **self._metadata(report, status, local_rank, failure.exit_code if failure else None),
                    "global_rank": member.rank_offset + local_rank if member else None,
                    "worker_id": str(report.pids.get(local_rank, "")),
                    "raw_error": json.dumps(said.raw) if said and said.raw else None,
                },
            )

    def _metadata(
        self, report: Report | None, status: Status, local_rank: int | None, exit_code: int | None = None
    ) -> dict[str, object]:
        more: dict[str, object] = {"group_world_size": report.nodes if report else None, "entry_point": self._title}
        if local_rank is not None and report is not None:
            more |= {"local_rank": [local_rank], "exit_code": [exit_code], "worker_pid": [report.pids.get(local_rank)]}
        return {
            **self._facts,
            "global_rank": None,
            "group_rank": report.member.group_rank if report and report.member else None,
            "worker_id": None,
            "hostname": os.uname().nodename,
            "total_run_time": int(time.monotonic() - self._began_s),
            "raw_error": None,
            "metadata": json.dumps(more),
            "agent_restarts": status.restarts_used,
            "duration_ms": None,
        }

    def _record(self, source: str, state: str, metadata: dict[str, object]) -> None:
        name = f"torchelastic.worker.status.{state}"
        metadata["state"] = state
        events = sys.modules.get(_TORCH)
        if events is not None:
            event = events.Event(name=name, source=getattr(events.EventSource, source), metadata=metadata)
            # torch's agent has imported the function by its name, and its launcher looks it up in the module.
            home = sys.modules.get(_AGENTS, events) if source == WORKER else events
            record: Callable[..., None] = home.record
            record(event, self._handler)
        elif self._handler == "console":
            line = {"name": name, "source": source, "timestamp": 0, "metadata": metadata}
            self._console.raw(json.dumps(line))
