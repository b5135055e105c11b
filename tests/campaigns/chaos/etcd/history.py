"""Reads a job's history from etcd: every change below the job's prefix, in the order of etcd's revisions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from elastic_agent.rendezvous.codec import job as jobs
from elastic_agent.rendezvous.codec import records as codec
from elastic_agent.rendezvous.etcd.client import EtcdClient
from elastic_agent.rendezvous.etcd.errors import EtcdClosed, EtcdWatchLost
from elastic_agent.rendezvous.etcd.ops import Change
from elastic_agent.rendezvous.records import Round
from elastic_agent.rendezvous.store import StoreUnreachable

PAUSE_S = 0.2
"""The pause between attempts to reach servers that are down."""


class HistoryReader:
    """A client beside those of the agents. It starts before the first agent and misses no revision: compactions are
    made only up to `read_up_to`."""

    def __init__(
        self, client: EtcdClient, prefix: bytes, folder: bytes, record: Callable[[dict[str, Any]], None]
    ) -> None:
        """`folder`: what the job's keys begin with; `prefix`: what all keys begin with, so that `read_up_to` follows
        every write. `record` gets each change of the job's keys, on the reader's thread."""
        self._client = client
        self._prefix = prefix
        self._folder = folder
        self._record = record
        self._stopping = threading.Event()
        self.read_up_to = 0
        """The newest revision that was read."""
        self.leader = ""
        """Identity of the node that coordinates, at that revision; empty: none does."""
        self.pids: dict[str, int] = {}
        """Process ids of the agents, by the identities of their nodes."""
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True, name="chaos-history")
        self._thread.start()

    def close(self) -> None:
        """Read all changes up to now, and end."""
        self._stopping.set()
        self._thread.join()
        self._client.close()

    def _follow(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    with closing(
                        self._client.watch(self._prefix, prefix=True, start_revision=self.read_up_to + 1)
                    ) as watch:
                        self._read(watch)
                except (EtcdWatchLost, StoreUnreachable) as error:
                    if isinstance(error, EtcdClosed):
                        raise
                    self._stopping.wait(PAUSE_S)
        except Exception as error:  # noqa: BLE001 - the run records it
            self.error = error

    def _read(self, watch: Any) -> None:
        quiet = False
        while not (self._stopping.is_set() and quiet):
            changes = watch.wait(PAUSE_S)
            quiet = not changes
            for change in changes:
                if change.item.key.startswith(self._folder):
                    self._record(self._line(change))
            self.read_up_to = watch.next_revision - 1

    def _line(self, change: Change) -> dict[str, Any]:
        item = change.item
        name = item.key.removeprefix(self._folder).decode()
        line: dict[str, Any] = {
            "what": "etcd", "at_s": time.monotonic(), "key": name, "deleted": change.deleted,
            "created": item.create_revision, "modified": item.mod_revision, "version": item.version,
        }  # fmt: skip
        kind = name.split("/")[1] if "/" in name else name
        if kind == "leader":
            self.leader = line["node"] = "" if change.deleted else item.value.decode()
        elif not change.deleted:
            line.update(self._decoded(kind, item.value))
        return line

    def _decoded(self, kind: str, value: bytes) -> dict[str, Any]:
        if kind == "round":
            return {"round": round_line(codec.decode_round(value))}
        if kind == "node":
            record = codec.decode_node(value)
            self.pids[record.node] = int(record.name.rpartition(":")[2])
            return {"node": record.node, "name": record.name, "state": record.state.value, "of": record.round}
        if kind == "job":
            job = jobs.decode_job(value)
            return {"outcome": job.outcome.value if job.outcome else None}
        return {}


def round_line(announced: Round) -> dict[str, Any]:
    """An announcement as a line of a file."""
    ended, outcome = announced.ended, announced.outcome
    return {
        "version": announced.version,
        "epoch": announced.epoch,
        "number": announced.number,
        "phase": announced.phase.value,
        "because": announced.because,
        "finishing": announced.finishing,
        "restarts": announced.restarts,
        "outcome": outcome.value if outcome else None,
        "members": [[each.node, each.name, each.group_rank, each.rank_offset, each.nproc] for each in announced.placed],
        "ended": [ended.round, ended.kind.value, ended.because, ended.charged] if ended else None,
    }
