"""One round's logs: which stream of which worker goes where, and what each worker gets as its stdout and stderr.

As in torchrun (torch 2.13, `DefaultLogsSpecs.reify`), what is tee'd is also written to a file; of ranks that the filter
leaves out, tee'd streams go to their files only and plain ones nowhere; without a directory there are neither files nor
prefixes. Unlike in torchrun, a worker always writes to a pipe that the agent reads, or to a terminal in place of the
agent's (docs/adr/0014-workers-write-to-pipes.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..spec import LogSpec
from .lines import prefix_of
from .relay import Relay
from .rotation import RotatingFile
from .sinks import FileSink, open_log
from .streams import LineFilter, Route, Stream

OUT, ERR = 1, 2
TAIL_WAIT_S = 0.05
"""How long `stderr_tail` waits. A worker's last output arrives within a millisecond, unless a process that it started
still holds the stream open."""
NAMES = {OUT: "stdout", ERR: "stderr"}


class RoundLogs:
    """One round's files and descriptors. Order of use: `stdio`, `close_worker_ends`, `finish`."""

    def __init__(
        self, spec: LogSpec, path: str, ranks: Mapping[int, int], fields: Mapping[str, object], relay: Relay
    ) -> None:
        """Opens nothing yet. `ranks`: local rank to global rank; `fields`: what the prefix may name beside them."""
        self.path = path
        """Absolute path of the attempt directory; empty when there are no files."""
        self.error_files: dict[int, str] = dict.fromkeys(ranks, "")
        """By local rank, for TORCHELASTIC_ERROR_FILE: absolute path in a directory that exists; empty without files."""
        self.stdout_files: dict[int, str] = dict.fromkeys(ranks, "")
        """By local rank: absolute path; empty where stdout is not kept in a file."""
        self.stderr_files: dict[int, str] = dict.fromkeys(ranks, "")
        self._spec = spec
        self._ranks = ranks
        self._fields = fields
        self._relay = relay
        self._shown = [local for local in ranks if not spec.local_ranks_filter or local in spec.local_ranks_filter]
        self._stdio: dict[int, dict[int, int]] = {}
        self._worker_ends: set[int] = set()
        self._streams: list[Stream] = []
        self._stderr: dict[int, Stream] = {}
        self._filters: dict[int, LineFilter | None] = {}

    def stdio(self, local_rank: int) -> tuple[int, int]:
        """Descriptors for the worker's stdout and stderr, valid until `close_worker_ends`."""
        ends = self._stdio[local_rank]
        return ends[OUT], ends[ERR]

    def close_worker_ends(self) -> None:
        """Close this process's copies of the workers' descriptors; until then no stream ends. Idempotent."""
        while self._worker_ends:
            os.close(self._worker_ends.pop())

    def finish(self, timeout_s: float) -> bool:
        """After the workers have exited: wait at most `timeout_s` until what they wrote is passed on, and a second more
        to close streams that a grandchild still holds. True when all streams were read to their end. Idempotent."""
        self.close_worker_ends()
        return self._relay.finish(self._streams, timeout_s)

    def stderr_tail(self, local_rank: int) -> str | None:
        """The end of the stderr of a worker that has exited, 64 KiB at most, kept in a file or not; None for a rank
        that the filter leaves out. Waits TAIL_WAIT_S for output that is still on its way. Where the console's stdout
        and stderr are one file, a plain worker's are one stream, and this is the end of both."""
        stream = self._stderr.get(local_rank)
        if stream is None:
            return None
        stream.done.wait(TAIL_WAIT_S)
        return stream.tail.decode(errors="replace")

    def open_worker(self, local_rank: int) -> None:
        """Make one worker's folder and open its streams. `JobLogs.open_round` calls it. Raises OSError."""
        folder = f"{self.path}/{local_rank}" if self.path else ""
        if folder:
            os.mkdir(folder)
            self.error_files[local_rank] = f"{folder}/error.json"
        ends = self._stdio[local_rank] = {}
        kept = self._spec.redirects.get(local_rank, 0) | self._spec.tee.get(local_rank, 0) if folder else 0
        for bit, name in NAMES.items():
            if kept & bit:
                shown = bool(self._spec.tee.get(local_rank, 0) & bit) and local_rank in self._shown
                ends[bit] = self._open_kept(local_rank, bit, f"{folder}/{name}.log", shown=shown)
            elif bit == ERR and not kept and self._relay.shared:
                ends[ERR] = ends[OUT]  # one pipe for both keeps the order of what was written, as `2>&1` does
            elif local_rank in self._shown:
                ends[bit] = self._open_plain(bit)
            else:
                ends[bit] = os.open(os.devnull, os.O_WRONLY)
            self._worker_ends.add(ends[bit])
        if not kept & ERR and local_rank not in self._shown:
            return
        # The stream opened last is its stderr, or the one that its stdout and stderr share.
        self._stderr[local_rank] = self._streams[-1]

    def _open_plain(self, bit: int) -> int:
        route = Route(err=bit == ERR, shown=True, at_once=len(self._shown) == 1)
        return self._add(route, terminal=True)

    def make_filtered(self) -> None:
        """Make the files of filtered lines, as torchrun does even if nothing is tee'd and so nothing filtered."""
        for bit in NAMES:
            if self._substrings(bit) and (path := self._filtered_path(bit)):
                os.close(open_log(path))

    def _open_kept(self, local_rank: int, bit: int, path: str, *, shown: bool) -> int:
        fields = {**self._fields, "local_rank": local_rank, "rank": self._ranks[local_rank]}
        line_filter = self._line_filter(bit) if shown else None
        route = Route(
            file=self._open_file(path),
            err=bit == ERR,
            shown=shown,
            prefix=prefix_of(self._spec.prefix_template, fields),
            at_once=len(self._shown) == 1,
            line_filter=line_filter,
        )
        (self.stdout_files if bit == OUT else self.stderr_files)[local_rank] = path
        return self._add(route, terminal=False)

    def _line_filter(self, bit: int) -> LineFilter | None:
        """The filter of stdout or stderr, one for all workers of this round; None if no filter is asked for."""
        if bit not in self._filters:
            substrings, path = self._substrings(bit), self._filtered_path(bit)
            self._filters[bit] = LineFilter(substrings, self._open_file(path)) if substrings and path else None
        return self._filters[bit]

    def _substrings(self, bit: int) -> tuple[bytes, ...]:
        filters = self._spec.stdout_filters if bit == OUT else self._spec.stderr_filters
        return tuple(os.fsencode(substring) for substring in filters)

    def _filtered_path(self, bit: int) -> str:
        return f"{self.path}/filtered_{NAMES[bit]}.log" if self.path else ""

    def _open_file(self, path: str) -> FileSink:
        rotation = self._spec.rotation
        return RotatingFile(path, self._relay.report, rotation) if rotation else FileSink(path, self._relay.report)

    def _add(self, route: Route, *, terminal: bool) -> int:
        try:
            fd, stream = self._relay.add(route, pipes=2 * len(self._ranks), terminal=terminal)
        except OSError:
            # No stream was made that would close these files.
            for file in route.files:
                if not file.streams:
                    file.close()
            raise
        self._streams.append(stream)
        return fd
