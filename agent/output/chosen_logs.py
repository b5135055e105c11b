"""One round's logs where a class of another package says which stream goes where: torch's `LogsSpecs`, whose `reify`
returned a `LogsDest` (torch 2.13, `torch.distributed.elastic.multiprocessing.api`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

from ..spec import LogSpec
from .relay import Relay
from .round_logs import ERR, NAMES, OUT, RoundLogs


class LogsDest(Protocol):
    """The part of torch's class that is used: paths by local rank."""

    stdouts: dict[int, str]
    stderrs: dict[int, str]
    tee_stdouts: dict[int, str]
    tee_stderrs: dict[int, str]
    error_files: dict[int, str]
    filtered_stdout: str
    filtered_stderr: str


class ChosenLogs(RoundLogs):
    """Files are those of `LogsDest`; an empty path is the console, /dev/null nothing. Streams in its `tee_` maps are
    shown on the console too."""

    def __init__(
        self, spec: LogSpec, dest: LogsDest, ranks: Mapping[int, int], fields: Mapping[str, object], relay: Relay
    ) -> None:
        """As `RoundLogs`. Raises what `reify` raised before this."""
        super().__init__(spec, "", ranks, fields, relay)
        self._files = {OUT: dest.stdouts, ERR: dest.stderrs}
        self._tees = {OUT: dest.tee_stdouts, ERR: dest.tee_stderrs}
        self._filtered = {OUT: dest.filtered_stdout, ERR: dest.filtered_stderr}
        for local_rank in ranks:
            path = dest.error_files.get(local_rank, "")
            self.error_files[local_rank] = "" if path in ("", os.devnull) else os.path.abspath(path)

    def _open_worker(self, local_rank: int) -> None:
        """Open one worker's streams. Raises OSError."""
        before = len(self._streams)
        ends = self._stdio[local_rank] = {}
        for bit in NAMES:
            path = self._files[bit].get(local_rank, "")
            if path == os.devnull:
                ends[bit] = os.open(os.devnull, os.O_WRONLY)
            elif path:
                ends[bit] = self._open_kept(local_rank, bit, path, teed=local_rank in self._tees[bit])
            else:
                ends[bit] = self._open_plain(bit)
            self._worker_ends.add(ends[bit])
        self._of_rank[local_rank] = self._streams[before:]
        if self._files[ERR].get(local_rank, "") != os.devnull:
            self._stderr[local_rank] = self._streams[-1]

    def _filtered_path(self, bit: int) -> str:
        path = str(self._filtered[bit] or "")
        return path if os.path.isdir(os.path.dirname(path)) else ""
