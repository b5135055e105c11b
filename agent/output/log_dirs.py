"""The directories of a job's logs.

The layout is torchrun's (torch 2.13, `DefaultLogsSpecs.reify`), except that no directory is deleted or used twice:

    <log dir>/<run id>_<random>/attempt_<restart count>/<local rank>/{stdout.log,stderr.log,error.json}
    <log dir>/<run id>_<random>/attempt_<restart count>/filtered_{stdout,stderr}.log

A round begun by a change of membership, which leaves the restart count as it was, gets `attempt_<k>_round_<round>`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

from .. import descriptors
from ..errors import AgentError, HostFailed, UsageError
from ..spec import LogSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .relay import Relay
    from .round_logs import RoundLogs

_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_RANDOM = "abcdefghijklmnopqrstuvwxyz0123456789"
FULL = (errno.ENOSPC, errno.EDQUOT)
"""What a disk without room, or a user without quota, answers."""
_NAME_MAX = 128
"""Characters of a run id that go into a directory's name, which may have 255 bytes."""


class JobLogs:
    """The log directory of one agent's job, and its rounds' directories within."""

    def __init__(
        self,
        spec: LogSpec,
        run_id: str,
        *,
        on_trouble: Callable[[str], None] | None = None,
        stdout_fd: int = 1,
        stderr_fd: int = 2,
    ) -> None:
        """Make the directory, readable by this user only. `on_trouble` gets one line for each file or console that
        loses output, from another thread, and must not block; without it the line is written to stderr. `stdout_fd` and
        `stderr_fd` are the console. Raises UsageError if the directory cannot be made."""
        self._spec = spec
        self._on_trouble = on_trouble
        self._console = (stdout_fd, stderr_fd)
        self._programs = (_program(sys.stdout, stdout_fd, 1), _program(sys.stderr, stderr_fd, 2))
        self._relay: Relay | None = None
        self._path = "" if spec.base_dir == os.devnull else _make_job_dir(spec.base_dir, run_id)

    @property
    def path(self) -> str:
        """Absolute path of the job's directory; empty when there are no files."""
        return self._path

    @property
    def temporary(self) -> str:
        """The temporary directory that was made for this job's directory; empty if the user named one, or there are no
        files."""
        return "" if self._spec.base_dir else os.path.dirname(self._path)

    @property
    def dropped(self) -> int:
        """Bytes of workers' output that were dropped instead of shown on the console."""
        return self._relay.dropped if self._relay else 0

    def take_midline(self) -> bool:
        """As `Relay.take_midline`; False as long as no worker has written."""
        return self._relay.take_midline() if self._relay else False

    def open_round(
        self,
        round: int,  # noqa: A002 - the field's word
        restart_count: int,
        ranks: Mapping[int, int],
        role: str,
        host: str,
        envs: dict[int, dict[str, str]] | None = None,
    ) -> RoundLogs:
        """Make a new attempt directory and open what the workers will write to. `ranks`: local rank to global rank.
        `envs`: the workers' environments by local rank, which `LogSpec.reify` gets and may add to.

        Where a directory cannot be made (a full disk), the round has no files, and `on_trouble` gets a line. Raises
        HostFailed if threads or descriptors run out.
        """
        from .round_logs import RoundLogs

        try:
            relay = self._start_relay()
        except OSError as error:
            why = f"{error.strerror or error}; raise this node's limits (ulimit -n)"
            raise HostFailed(f"cannot relay the workers' output: {why}") from error
        fields = {"role_name": role, "role": role, "host": host, "round": round}
        if self._spec.reify is not None:
            from .chosen_logs import ChosenLogs

            logs: RoundLogs = ChosenLogs(self._spec, self._spec.reify(envs or {}), ranks, fields, relay)
        else:
            path = self._make_attempt_dir(relay, round, restart_count) if self._path else ""
            logs = RoundLogs(self._spec, path, ranks, fields, relay)
        logs.make_filtered()
        return logs

    def close(self) -> None:
        """End the relay's threads; output that is written after it is lost. Idempotent."""
        if self._relay:
            self._relay.close()

    def _start_relay(self) -> Relay:
        if self._relay is None:
            from .relay import Relay

            out, err = self._console
            self._relay = Relay(self._on_trouble, stdout_fd=out, stderr_fd=err, programs=self._programs)
        return self._relay

    def _make_attempt_dir(self, relay: Relay, number: int, restart_count: int) -> str:
        """Absolute path of a new directory; empty if none can be made."""
        path = plain = f"{self._path}/attempt_{restart_count}"
        count = 0
        try:
            # A cleaner of temporary files may have removed it.
            os.makedirs(self._path, 0o700, exist_ok=True)
            while not _make_new(path):
                count += 1
                path = f"{plain}_round_{number}" + (f"_{count}" if count > 1 else "")
        except OSError as error:
            if error.errno in descriptors.REFUSED:
                raise _log_dir_error(path, error) from error
            # The job goes on: what a disk cannot take is no failure of the workers, and starting them again is no cure.
            relay.report(
                f"cannot make the log directory {path}: {_reason(error)}; the workers of round {number} run without "
                "log files and error files, and their output goes to the console"
            )
            return ""
        return path


def _program(stream: TextIO | None, fd: int, standard: int) -> TextIO | None:
    """`stream` if the program around the agent prints there and not to `fd`, its standard descriptor."""
    from .sinks import prints_elsewhere

    return stream if fd == standard and prints_elsewhere(stream, fd) else None


def _make_job_dir(base: str | None, run_id: str) -> str:
    """Make it; or, on a disk that is full now, only name it: each round tries again. Raises UsageError."""
    name = f"{_file_name(run_id)}_"
    if base:
        base = os.path.abspath(base)
        try:
            os.makedirs(base, exist_ok=True)
            return make_random_dir(base, name)
        except OSError as error:
            if error.errno in FULL:
                return f"{base}/{name}{_random()}"
            raise _log_dir_error(base, error) from error
    temporary = make_temporary_dir()
    try:
        return make_random_dir(temporary, name)
    except OSError as error:
        if error.errno in FULL or not os.path.isdir(temporary):
            return f"{temporary}/{name}{_random()}"
        raise _log_dir_error(temporary, error) from error


def make_temporary_dir() -> str:
    """A new temporary directory, readable by this user only; on disks that are full now, only its name. Raises
    UsageError or HostFailed if there can be none."""
    trouble: AgentError = UsageError("there is no temporary directory; name a log directory with --log-dir")
    full = ""
    for place in map(os.path.abspath, _temporary_places()):
        try:
            return make_random_dir(place, "elastic_agent_")
        except OSError as error:
            trouble = _log_dir_error(place, error)  # as `tempfile.gettempdir` does, the next place is tried
            full = full or (place if error.errno in FULL else "")
    if full:
        return f"{full}/elastic_agent_{_random()}"
    raise trouble


def _temporary_places() -> list[str]:
    asked = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    return [*filter(None, asked), "/tmp", "/var/tmp", "/usr/tmp", "."]  # noqa: S108 - the directories made are private


def make_random_dir(base: str, prefix: str) -> str:
    """As `tempfile.mkdtemp`, whose import takes longer than all of this module. Raises OSError."""
    while True:
        path = f"{base}/{prefix}{_random()}"
        if _make_new(path, 0o700):
            return path


def _random() -> str:
    return "".join(_RANDOM[byte % len(_RANDOM)] for byte in os.urandom(8))


def _make_new(path: str, mode: int = 0o777) -> bool:
    """Make a directory; False if there is a file or directory of that name."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return False
    return True


def _file_name(run_id: str) -> str:
    name = "".join(letter if letter in _PLAIN else "_" for letter in run_id[:_NAME_MAX])
    return f"_{name[1:]}" if name.startswith(".") else name


def _log_dir_error(path: object, error: OSError) -> AgentError:
    if error.errno in descriptors.REFUSED:
        why = f"{error.strerror}; raise the limit with ulimit -n"
        return HostFailed(f"cannot open the workers' logs in {path}: {why}")
    return UsageError(f"cannot use log directory {path}: {_reason(error)}; name another one with --log-dir")


def _reason(error: OSError) -> str:
    # From `makedirs`, FileExistsError means that a part of the path is a file.
    return "not a directory" if isinstance(error, FileExistsError) else error.strerror or str(error)
