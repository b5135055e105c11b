"""Where workers' output goes: the directories, the files, and what each worker gets as its stdout and stderr.

The layout is torchrun's (torch 2.13, `DefaultLogsSpecs.reify`), except that nothing is ever deleted or used twice:

    <log dir>/<run id>_<random>/attempt_<restart count>/<local rank>/{stdout.log,stderr.log,error.json}
    <log dir>/<run id>_<random>/attempt_<restart count>/filtered_{stdout,stderr}.log

A round begun by a change of membership, which leaves the restart count as it was, gets `attempt_<k>_round_<round>`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping

from .errors import UsageError
from .spec import LogSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .relay import Relay
    from .streams import FileSink, Stream

OUT, ERR = 1, 2
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_RANDOM = "abcdefghijklmnopqrstuvwxyz0123456789"
_NAME_MAX = 128
"""Characters of a run id that go into a directory's name; a file system takes 255 in all."""

LAST_WORDS_BYTES = 1 << 16
LAST_WORDS_S = 0.05
"""What a worker wrote last is through in a millisecond, unless something that it left behind holds the stream open."""


class JobLogs:
    """The directory of one agent's job, and its rounds within."""

    def __init__(
        self,
        spec: LogSpec,
        run_id: str,
        *,
        on_trouble: Callable[[str], None] | None = None,
        stdout_fd: int = 1,
        stderr_fd: int = 2,
    ) -> None:
        """Make the directory, readable by this user only. `on_trouble` gets one line for each place that loses output,
        from another thread, and must not block; without it the line goes to stderr. `stdout_fd` and `stderr_fd` are
        the console. Raises UsageError if the directory cannot be made."""
        self._spec = spec
        self._on_trouble = on_trouble
        self._console = (stdout_fd, stderr_fd)
        self._relay: Relay | None = None
        self._path = "" if spec.base_dir == os.devnull else _make_job_dir(spec.base_dir, run_id)

    @property
    def path(self) -> str:
        """Absolute path of the job's directory; empty when there are no files."""
        return self._path

    @property
    def dropped(self) -> int:
        """Bytes of tee'd output that did not reach the console."""
        return self._relay.dropped if self._relay else 0

    def open_round(
        self,
        round: int,  # noqa: A002 - what it is called everywhere else
        restart_count: int,
        ranks: Mapping[int, int],
        role: str,
        host: str,
    ) -> RoundLogs:
        """Make a fresh attempt directory, open what the workers will write to. `ranks`: local rank to global rank.

        Raises UsageError when a directory or file cannot be made; then nothing is left open.
        """
        path = self._make_attempt_dir(round, restart_count) if self._path else ""
        logs = RoundLogs(path, ranks)
        try:
            if path:
                for local_rank, rank in ranks.items():
                    known = {"role_name": role, "local_rank": local_rank, "rank": rank, "host": host, "round": round}
                    logs.open_worker(self._spec, local_rank, known, self._start_relay)
        except BaseException as error:
            logs.finish(0.0)
            if isinstance(error, OSError):
                raise _unusable(error.filename or path, error) from error
            raise
        return logs

    def close(self) -> None:
        """End the relay's thread; output that still arrives is lost. Idempotent."""
        if self._relay:
            self._relay.close()

    def _start_relay(self) -> Relay:
        if self._relay is None:
            from .relay import Relay

            out, err = self._console
            self._relay = Relay(self._on_trouble, stdout_fd=out, stderr_fd=err)
        return self._relay

    def _make_attempt_dir(self, number: int, restart_count: int) -> str:
        path = plain = f"{self._path}/attempt_{restart_count}"
        count = 0
        try:
            # Made anew if a cleaner of temporary files took it.
            os.makedirs(self._path, 0o700, exist_ok=True)
            while not _made(path):
                count += 1
                path = f"{plain}_round_{number}" + (f"_{count}" if count > 1 else "")
        except OSError as error:
            raise _unusable(path, error) from error
        return path


class RoundLogs:
    """One round's files and descriptors. Order of use: `stdio`, `handed_over`, `finish`."""

    def __init__(self, path: str, ranks: Mapping[int, int]) -> None:
        self.path = path
        """Absolute path of the attempt directory; empty when there are no files."""
        self.error_files: dict[int, str] = dict.fromkeys(ranks, "")
        """By local rank, for TORCHELASTIC_ERROR_FILE: absolute path in a directory that exists; empty without files."""
        self.stdout_files: dict[int, str] = dict.fromkeys(ranks, "")
        """By local rank: absolute path; empty where stdout is not kept in a file."""
        self.stderr_files: dict[int, str] = dict.fromkeys(ranks, "")
        self._stdio: dict[int, list[int | None]] = {local_rank: [None, None] for local_rank in ranks}
        self._child_ends: set[int] = set()
        self._relay: Relay | None = None
        self._streams: list[Stream] = []
        self._picked: dict[int, FileSink] = {}
        self._stderr_streams: dict[int, Stream] = {}

    def stdio(self, local_rank: int) -> tuple[int | None, int | None]:
        """Descriptors for the worker's stdout and stderr, valid until `handed_over`; None: inherit the console."""
        out, err = self._stdio[local_rank]
        return out, err

    def handed_over(self) -> None:
        """Close this process's copies of what the workers got; until then no tee'd stream ends. Idempotent."""
        while self._child_ends:
            os.close(self._child_ends.pop())

    def finish(self, timeout_s: float) -> bool:
        """After the workers are gone: wait until what they wrote is passed on, at most `timeout_s` (and a second to
        let go of streams that a grandchild still holds). True when all streams came to their end. Idempotent."""
        self.handed_over()
        if self._relay is None:
            return True
        return self._relay.finish(self._streams, timeout_s)

    def last_words(self, local_rank: int, limit: int = LAST_WORDS_BYTES) -> str | None:
        """The end of what a worker that is gone wrote to its stderr; None if that is not kept in a file. Waits a moment
        for what is still on its way there."""
        path = self.stderr_files.get(local_rank)
        if not path:
            return None
        if (stream := self._stderr_streams.get(local_rank)) is not None:
            stream.done.wait(LAST_WORDS_S)
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
                return file.read(limit).decode(errors="replace")
        except OSError:
            return None  # gone with its disk: then it is not kept

    def open_worker(
        self, spec: LogSpec, local_rank: int, known: Mapping[str, object], relay: Callable[[], Relay]
    ) -> None:
        """Make one worker's folder and open its streams; for `JobLogs.open_round`. `known`: values for the prefix.
        Raises OSError."""
        folder = f"{self.path}/{local_rank}"
        os.mkdir(folder)
        self.error_files[local_rank] = f"{folder}/error.json"
        shown = not spec.local_ranks_filter or local_rank in spec.local_ranks_filter
        tee = spec.tee.get(local_rank, 0)
        # As torchrun: what is tee'd is also in a file; ranks left out of the filter keep the file only.
        kept = spec.redirects.get(local_rank, 0) | tee
        for bit, name, files in ((OUT, "stdout", self.stdout_files), (ERR, "stderr", self.stderr_files)):
            if kept & bit:
                files[local_rank] = path = f"{folder}/{name}.log"
                if tee & bit and shown:
                    fd = self._tee(spec, bit, path, _prefix(spec.prefix_template, known), relay())
                    if bit == ERR:
                        self._stderr_streams[local_rank] = self._streams[-1]
                else:
                    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            elif not shown:
                fd = os.open(os.devnull, os.O_WRONLY)
            else:
                continue
            self._child_ends.add(fd)
            self._stdio[local_rank][bit - 1] = fd

    def _tee(self, spec: LogSpec, bit: int, path: str, prefix: bytes, relay: Relay) -> int:
        from .streams import FileSink

        self._relay = relay
        filters = spec.stdout_filters if bit == OUT else spec.stderr_filters
        picked = self._picked.get(bit)
        if filters and picked is None:
            name = "filtered_stdout.log" if bit == OUT else "filtered_stderr.log"
            picked = self._picked[bit] = FileSink(f"{self.path}/{name}", relay.on_trouble)
        needles = tuple(os.fsencode(needle) for needle in filters)
        file = FileSink(path, relay.on_trouble)
        try:
            fd, stream = relay.add(prefix, file, err=bit == ERR, needles=needles, picked=picked)
        except OSError:
            # No stream was made, so nobody else closes these.
            for sink in (file, picked):
                if sink is not None and not sink.streams:
                    sink.release()
            raise
        self._streams.append(stream)
        return fd


def _prefix(template: str, known: Mapping[str, object]) -> bytes:
    from string import Template

    # One line, whatever the template and the host's name contain.
    return os.fsencode(" ".join(Template(template).safe_substitute(known).splitlines()))


def _make_job_dir(base: str | None, run_id: str) -> str:
    name = f"{_file_name(run_id)}_"
    if base:
        base = os.path.abspath(base)
        try:
            os.makedirs(base, exist_ok=True)
            return _make_fresh_dir(base, name)
        except OSError as error:
            raise _unusable(base, error) from error
    trouble = UsageError("there is no temporary directory; name one with --log-dir")
    for place in _temporary_places():
        try:
            return _make_fresh_dir(_make_fresh_dir(os.path.abspath(place), "elastic_agent_"), name)
        except OSError as error:
            trouble = _unusable(place, error)  # as `tempfile.gettempdir`: the next place may do
    raise trouble


def _temporary_places() -> list[str]:
    asked = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    return [*filter(None, asked), "/tmp", "/var/tmp", "/usr/tmp", "."]  # noqa: S108 - the directories made are private


def _make_fresh_dir(base: str, prefix: str) -> str:
    """As `tempfile.mkdtemp`, whose import costs more than all the rest here. Raises OSError."""
    while True:
        path = f"{base}/{prefix}" + "".join(_RANDOM[byte % len(_RANDOM)] for byte in os.urandom(8))
        if _made(path, 0o700):
            return path


def _made(path: str, mode: int = 0o777) -> bool:
    """Make a directory; False if something of that name is there."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return False
    return True


def _file_name(run_id: str) -> str:
    name = "".join(letter if letter in _PLAIN else "_" for letter in run_id[:_NAME_MAX])
    return f"_{name[1:]}" if name.startswith(".") else name


def _unusable(path: object, error: OSError) -> UsageError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return UsageError(f"cannot open the workers' logs in {path}: {error.strerror}; raise the limit with ulimit -n")
    # From makedirs: what is there is a file.
    reason = "not a directory" if isinstance(error, FileExistsError) else error.strerror or str(error)
    return UsageError(f"cannot use log directory {path}: {reason}; name another one with --log-dir")
