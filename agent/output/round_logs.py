"""One round's logs: which stream of which worker goes where, and what each worker gets as its stdout and stderr.

As in torchrun (torch 2.13, `DefaultLogsSpecs.reify`), what is tee'd is also written to a file; of ranks that the filter
leaves out, tee'd streams go to their files only and plain ones nowhere; without a directory there are neither files nor
prefixes. Unlike in torchrun, a worker always writes to a pipe that the agent reads, or to a terminal in place of the
agent's (docs/adr/0014-workers-write-to-pipes.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import monotonic

from .. import descriptors
from ..errors import HostFailed
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
TAILS_WAIT_S = 0.5
"""How long all its calls of one round wait together: they hold up the agent's loop."""
NAMES = {OUT: "stdout", ERR: "stderr"}


class RoundLogs:
    """One round's files and descriptors. Order of use: `stdio`, `close_worker_ends`, `finish`."""

    def __init__(
        self, spec: LogSpec, path: str, ranks: Mapping[int, int], fields: Mapping[str, object], relay: Relay
    ) -> None:
        """Makes the workers' folders; opens nothing yet. `ranks`: local rank to global rank; `fields`: what the prefix
        may name beside them."""
        self.path = path
        """Absolute path of the attempt directory; empty when there are no files."""
        self.error_files: dict[int, str] = dict.fromkeys(ranks, "")
        """By local rank, for TORCHELASTIC_ERROR_FILE: absolute path in a directory that exists; empty without files."""
        self.stdout_files: dict[int, str] = dict.fromkeys(ranks, "")
        """By local rank: absolute path; empty where stdout is not kept in a file. Filled by `stdio`."""
        self.stderr_files: dict[int, str] = dict.fromkeys(ranks, "")
        self._spec = spec
        self.ranks = ranks
        """Global rank by local rank."""
        self._fields = fields
        self._relay = relay
        self._shown = [local for local in ranks if not spec.local_ranks_filter or local in spec.local_ranks_filter]
        self._stdio: dict[int, dict[int, int]] = {}
        self._worker_ends: set[int] = set()
        self._streams: list[Stream] = []
        self._stderr: dict[int, Stream] = {}
        self._of_rank: dict[int, list[Stream]] = {}
        self._filters: dict[int, LineFilter | None] = {}
        self._complained = False
        self._tails_wait_s = TAILS_WAIT_S
        """What is left of it."""
        for local_rank in ranks if path else ():
            self._make_folder(local_rank)

    def stdio(self, local_rank: int) -> tuple[int, int]:
        """Descriptors for the worker's stdout and stderr, valid until `close_worker_ends`. Opened at the first call, so
        that a node with many workers holds those of one at a time. Raises HostFailed when descriptors or threads run
        out."""
        if local_rank not in self._stdio:
            try:
                self._open_worker(local_rank)
            except OSError as error:
                problem = f"cannot open the output of local rank {local_rank}: {error.strerror or error}"
                raise HostFailed(
                    f"{problem}; raise this node's limits (ulimit -n, ulimit -u, the cgroup's pids.max)"
                ) from error
        ends = self._stdio[local_rank]
        return ends[OUT], ends[ERR]

    def close_worker_ends(self) -> None:
        """Close this process's copies of the workers' descriptors; until then no stream ends. Idempotent."""
        while self._worker_ends:
            os.close(self._worker_ends.pop())

    def passed_on(self, within_s: float) -> bool:
        """After the workers have exited: whether all that they wrote is passed on within this time."""
        self.close_worker_ends()
        return self._relay.passed_on(self._streams, within_s)

    def finish(self, timeout_s: float, most_s: float = float("inf")) -> bool:
        """After the workers have exited: wait at most `timeout_s` until what they wrote is read, and a second more
        to close streams that a grandchild still holds; then until it is written, for as long as there is progress, and
        until `most_s` have passed in all. True when all streams were read to their end. From any thread. Idempotent."""
        self.close_worker_ends()
        return self._relay.finish(self._streams, timeout_s, most_s)

    def written(self) -> dict[int, int]:
        """Bytes that each worker has written so far, by local rank; of a rank whose output goes nowhere 0. From any
        thread."""
        return {rank: sum(stream.total for stream in streams) for rank, streams in list(self._of_rank.items())}

    def streams_of(self, local_rank: int) -> dict[str, Stream]:
        """The streams of a worker: `stdout` and `stderr`, or `output` where both go one way; none of a rank whose
        output goes nowhere, or is not opened yet. From any thread."""
        streams = list(self._of_rank.get(local_rank, ()))
        kept = self.stdout_files.get(local_rank) or self.stderr_files.get(local_rank)
        if len(streams) == 1 and self._relay.shared and not kept:
            return {"output": streams[0]}
        return {"stderr" if stream.err else "stdout": stream for stream in streams}

    def stderr_tail(self, local_rank: int) -> str | None:
        """The end of the stderr of a worker that has exited, 64 KiB at most, kept in a file or not; None for a rank
        that the filter leaves out. Waits TAIL_WAIT_S for output that is still on its way. Where the console's stdout
        and stderr are one file, a plain worker's are one stream, and this is the end of both."""
        stream = self._stderr.get(local_rank)
        if stream is None:
            return None
        began = monotonic()
        self._relay.release(stream)
        stream.done.wait(min(TAIL_WAIT_S, self._tails_wait_s))
        self._tails_wait_s = max(0.0, self._tails_wait_s - (monotonic() - began))
        return stream.tail.decode(errors="replace")

    def _make_folder(self, local_rank: int) -> None:
        """Make one worker's folder, if this disk takes it."""
        folder = f"{self.path}/{local_rank}"
        try:
            os.mkdir(folder)
        except OSError as error:
            self._complain(folder, error)
            return
        self.error_files[local_rank] = f"{folder}/error.json"

    def _complain(self, path: str, error: OSError) -> None:
        """Report, once a round, that there is no such file or folder, and what that means."""
        if not self._complained:
            self._complained = True
            self._relay.report(
                f"cannot open {path} for a worker's output: {error.strerror or error}; "
                "what this disk does not take in this round goes to the console"
            )

    def _open_worker(self, local_rank: int) -> None:
        """Open one worker's streams. Raises OSError."""
        folder = self.error_files[local_rank].rpartition("/")[0]
        before = len(self._streams)
        ends = self._stdio[local_rank] = {}
        kept = self._spec.redirects.get(local_rank, 0) | self._spec.tee.get(local_rank, 0) if folder else 0
        for bit, name in NAMES.items():
            if kept & bit:
                teed = bool(self._spec.tee.get(local_rank, 0) & bit)
                ends[bit] = self._open_kept(local_rank, bit, f"{folder}/{name}.log", teed=teed)
            elif bit == ERR and not kept and self._relay.shared:
                ends[ERR] = ends[OUT]  # one pipe for both keeps the order of what was written, as `2>&1` does
            elif local_rank in self._shown:
                ends[bit] = self._open_plain(bit)
            else:
                ends[bit] = os.open(os.devnull, os.O_WRONLY)
            self._worker_ends.add(ends[bit])
        self._of_rank[local_rank] = self._streams[before:]
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
                try:
                    os.close(open_log(path))
                except OSError as error:
                    self._complain(path, error)

    def _open_kept(self, local_rank: int, bit: int, path: str, *, teed: bool) -> int:
        file = self._open_file(path)
        # Without a file the console is the only place that is left.
        shown = (file is None or teed) and local_rank in self._shown
        fields = {**self._fields, "local_rank": local_rank, "rank": self.ranks[local_rank]}
        line_filter = self._line_filter(bit) if shown else None
        route = Route(
            file=file,
            err=bit == ERR,
            shown=shown,
            prefix=prefix_of(self._spec.prefix_template, fields),
            at_once=len(self._shown) == 1,
            line_filter=line_filter,
        )
        if file is not None:
            (self.stdout_files if bit == OUT else self.stderr_files)[local_rank] = path
        return self._add(route, terminal=False)

    def _line_filter(self, bit: int) -> LineFilter | None:
        """The filter of stdout or stderr, one for all workers of this round; None if no filter is asked for."""
        if bit not in self._filters:
            substrings, path = self._substrings(bit), self._filtered_path(bit)
            file = self._open_file(path) if substrings and path else None
            self._filters[bit] = LineFilter(substrings, file) if file is not None else None
        return self._filters[bit]

    def _substrings(self, bit: int) -> tuple[bytes, ...]:
        filters = self._spec.stdout_filters if bit == OUT else self._spec.stderr_filters
        return tuple(os.fsencode(substring) for substring in filters)

    def _filtered_path(self, bit: int) -> str:
        return f"{self.path}/filtered_{NAMES[bit]}.log" if self.path else ""

    def _open_file(self, path: str) -> FileSink | None:
        """A new log file; None if this disk does not take it. Raises OSError when descriptors run out."""
        rotation = self._spec.rotation
        try:
            return RotatingFile(path, self._relay.report, rotation) if rotation else FileSink(path, self._relay.report)
        except OSError as error:
            if error.errno in descriptors.REFUSED:
                raise
            self._complain(path, error)
            return None

    def _add(self, route: Route, *, terminal: bool) -> int:
        try:
            fd, stream = self._relay.add(route, pipes=2 * len(self.ranks), terminal=terminal)
        except OSError:
            # No stream was made that would close these files.
            for file in route.files:
                if not file.streams:
                    file.close()
            raise
        self._streams.append(stream)
        return fd
