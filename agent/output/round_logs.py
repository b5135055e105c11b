"""One round's logs: which stream of which worker goes where, and what each worker gets as its stdout and stderr.

As torchrun (torch 2.13, `DefaultLogsSpecs.reify`): what is tee'd is also in a file; of ranks that the filter leaves
out, tee'd streams are in their files only, and plain ones nowhere; without a directory there are neither files nor
prefixes. Otherwise than there, a worker always writes to a pipe that the agent reads, or to a terminal in the place of
the agent's (docs/adr/0014-workers-write-to-pipes.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..spec import LogSpec
from .lines import prefix_of
from .relay import Relay
from .rotation import RotatingFile
from .sinks import FileSink
from .streams import Picker, Route, Stream

OUT, ERR = 1, 2
LAST_REPORTS_S = 0.05
"""What a worker wrote last is through in a millisecond, unless something that it left behind holds the stream open."""
NAMES = {OUT: "stdout", ERR: "stderr"}


class RoundLogs:
    """One round's files and descriptors. Order of use: `stdio`, `handed_over`, `finish`."""

    def __init__(
        self, spec: LogSpec, path: str, ranks: Mapping[int, int], known: Mapping[str, object], relay: Relay
    ) -> None:
        """Opens nothing yet. `ranks`: local rank to global rank; `known`: what the prefix may name beside them."""
        self.path = path
        """Absolute path of the attempt directory; empty when there are no files."""
        self.error_files: dict[int, str] = dict.fromkeys(ranks, "")
        """By local rank, for TORCHELASTIC_ERROR_FILE: absolute path in a directory that exists; empty without files."""
        self.stdout_files: dict[int, str] = dict.fromkeys(ranks, "")
        """By local rank: absolute path; empty where stdout is not kept in a file."""
        self.stderr_files: dict[int, str] = dict.fromkeys(ranks, "")
        self._spec = spec
        self._ranks = ranks
        self._known = known
        self._relay = relay
        self._shown = [local for local in ranks if not spec.local_ranks_filter or local in spec.local_ranks_filter]
        self._stdio: dict[int, dict[int, int]] = {}
        self._child_ends: set[int] = set()
        self._streams: list[Stream] = []
        self._stderr: dict[int, Stream] = {}
        self._pickers: dict[int, Picker | None] = {}

    def stdio(self, local_rank: int) -> tuple[int, int]:
        """Descriptors for the worker's stdout and stderr, valid until `handed_over`."""
        ends = self._stdio[local_rank]
        return ends[OUT], ends[ERR]

    def handed_over(self) -> None:
        """Close this process's copies of what the workers got; until then no stream ends. Idempotent."""
        while self._child_ends:
            os.close(self._child_ends.pop())

    def finish(self, timeout_s: float) -> bool:
        """After the workers are gone: wait until what they wrote is passed on, at most `timeout_s` (and a second to
        let go of streams that a grandchild still holds). True when all streams came to their end. Idempotent."""
        self.handed_over()
        return self._relay.finish(self._streams, timeout_s)

    def last_words(self, local_rank: int) -> str | None:
        """The end of what a worker that is gone wrote to its stderr, 64 KiB at most, in a file or not; None of one
        that the filter silenced. Waits a moment for what is still on its way. Where the console's stdout and stderr are
        one, so are a worker's plain ones."""
        stream = self._stderr.get(local_rank)
        if stream is None:
            return None
        stream.done.wait(LAST_REPORTS_S)
        return stream.tail.decode(errors="replace")

    def open_worker(self, local_rank: int) -> None:
        """Make one worker's folder and open its streams; for `JobLogs.open_round`. Raises OSError."""
        folder = f"{self.path}/{local_rank}" if self.path else ""
        if folder:
            os.mkdir(folder)
            self.error_files[local_rank] = f"{folder}/error.json"
        ends = self._stdio[local_rank] = {}
        asked = self._spec.redirects.get(local_rank, 0) | self._spec.tee.get(local_rank, 0) if folder else 0
        for bit, name in NAMES.items():
            if asked & bit:
                ends[bit] = self._open_kept(local_rank, bit, f"{folder}/{name}.log")
            elif bit == ERR and not asked and self._relay.shared:
                ends[ERR] = ends[OUT]  # one pipe for both keeps what `2>&1` promises, their order
            elif local_rank in self._shown:
                ends[bit] = self._open_plain(bit)
            else:
                ends[bit] = os.open(os.devnull, os.O_WRONLY)
            self._child_ends.add(ends[bit])
        if not asked & ERR and local_rank not in self._shown:
            return
        # The stream opened last is its stderr's, unless that shares its stdout's.
        self._stderr[local_rank] = self._streams[-1]

    def _open_plain(self, bit: int) -> int:
        route = Route(err=bit == ERR, shown=True, at_once=len(self._shown) == 1)
        return self._add(route, terminal=True)

    def _open_kept(self, local_rank: int, bit: int, path: str) -> int:
        shown = bool(self._spec.tee.get(local_rank, 0) & bit) and local_rank in self._shown
        known = {**self._known, "local_rank": local_rank, "rank": self._ranks[local_rank]}
        picker = self._picker(bit) if shown else None
        route = Route(
            file=self._open_file(path),
            err=bit == ERR,
            shown=shown,
            prefix=prefix_of(self._spec.prefix_template, known),
            at_once=len(self._shown) == 1,
            picker=picker,
        )
        (self.stdout_files if bit == OUT else self.stderr_files)[local_rank] = path
        return self._add(route, terminal=False)

    def _picker(self, bit: int) -> Picker | None:
        """One for all workers of this round."""
        if bit not in self._pickers:
            filters = self._spec.stdout_filters if bit == OUT else self._spec.stderr_filters
            needles = tuple(os.fsencode(needle) for needle in filters)
            path = f"{self.path}/filtered_{NAMES[bit]}.log"
            self._pickers[bit] = Picker(needles, self._open_file(path)) if needles else None
        return self._pickers[bit]

    def _open_file(self, path: str) -> FileSink:
        rotation = self._spec.rotation
        return RotatingFile(path, self._relay.say, rotation) if rotation else FileSink(path, self._relay.say)

    def _add(self, route: Route, *, terminal: bool) -> int:
        try:
            fd, stream = self._relay.add(route, pipes=2 * len(self._ranks), terminal=terminal)
        except OSError:
            # No stream was made, so nobody else closes these.
            for file in route.files:
                if not file.streams:
                    file.close()
            raise
        self._streams.append(stream)
        return fd
