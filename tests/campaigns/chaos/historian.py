"""Reads a job's history from etcd itself: every change below the job's prefix, in the order of etcd's revisions."""

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
"""Between attempts to reach servers that are down."""


class Historian:
    """A client apart from all agents'. It starts before the first of them and misses no revision: compactions are made
    only up to `seen`."""

    def __init__(
        self, client: EtcdClient, prefix: bytes, folder: bytes, tell: Callable[[dict[str, Any]], None]
    ) -> None:
        """`folder`: what the job's keys begin with, and `prefix`: all that is written at all, so that `seen` follows.
        `tell` is told of each change of the job's, on a thread of the historian."""
        self._client = client
        self._prefix = prefix
        self._folder = folder
        self._tell = tell
        self._over = threading.Event()
        self.seen = 0
        """The newest revision that is known here."""
        self.leader = ""
        """Identity of the node that coordinates, as far as is known; empty: nobody."""
        self.pids: dict[str, int] = {}
        """Of the agents, by the identities of their nodes."""
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True, name="chaos-historian")
        self._thread.start()

    def close(self) -> None:
        """Take in all that has happened by now, and end."""
        self._over.set()
        self._thread.join()
        self._client.close()

    def _follow(self) -> None:
        try:
            while not self._over.is_set():
                try:
                    with closing(self._client.watch(self._prefix, prefix=True, start_revision=self.seen + 1)) as watch:
                        self._read(watch)
                except (EtcdWatchLost, StoreUnreachable) as error:
                    if isinstance(error, EtcdClosed):
                        raise
                    self._over.wait(PAUSE_S)
        except Exception as error:  # noqa: BLE001 - whoever asks for the history is told
            self.error = error

    def _read(self, watch: Any) -> None:
        quiet = False
        while not (self._over.is_set() and quiet):
            changes = watch.wait(PAUSE_S)
            quiet = not changes
            for change in changes:
                if change.item.key.startswith(self._folder):
                    self._tell(self._line(change))
            self.seen = watch.next_revision - 1

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
            line.update(self._meaning(kind, item.value))
        return line

    def _meaning(self, kind: str, value: bytes) -> dict[str, Any]:
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


def round_line(word: Round) -> dict[str, Any]:
    """An announcement, for a file."""
    ended = word.ended
    return {
        "version": word.version, "epoch": word.epoch, "number": word.number, "phase": word.phase.value,
        "because": word.because, "finishing": word.finishing, "restarts": word.restarts,
        "outcome": word.outcome.value if word.outcome else None,
        "members": [[each.node, each.name, each.group_rank, each.rank_offset, each.nproc] for each in word.placed],
        "ended": [ended.round, ended.kind.value, ended.because, ended.charged] if ended else None,
    }  # fmt: skip
