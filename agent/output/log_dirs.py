"""Where the logs of a job lie: the directories.

The layout is torchrun's (torch 2.13, `DefaultLogsSpecs.reify`), except that nothing is ever deleted or used twice:

    <log dir>/<run id>_<random>/attempt_<restart count>/<local rank>/{stdout.log,stderr.log,error.json}
    <log dir>/<run id>_<random>/attempt_<restart count>/filtered_{stdout,stderr}.log

A round begun by a change of membership, which leaves the restart count as it was, gets `attempt_<k>_round_<round>`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping

from ..errors import AgentError, HostFailed, UsageError
from ..spec import LogSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .relay import Relay
    from .round_logs import RoundLogs

_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_RANDOM = "abcdefghijklmnopqrstuvwxyz0123456789"
_NAME_MAX = 128
"""Characters of a run id that go into a directory's name; a file system takes 255 in all."""


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
        from .round_logs import RoundLogs

        known = {"role_name": role, "role": role, "host": host, "round": round}
        logs = RoundLogs(self._spec, path, ranks, known, self._start_relay())
        try:
            for local_rank in ranks:
                logs.open_worker(local_rank)
        except BaseException as error:
            logs.finish(0.0)
            if isinstance(error, OSError):
                raise _unusable(error.filename or path, error) from error
            raise
        return logs

    def close(self) -> None:
        """End the relay's threads; output that still arrives is lost. Idempotent."""
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


def _make_job_dir(base: str | None, run_id: str) -> str:
    name = f"{_file_name(run_id)}_"
    if base:
        base = os.path.abspath(base)
        try:
            os.makedirs(base, exist_ok=True)
            return _make_fresh_dir(base, name)
        except OSError as error:
            raise _unusable(base, error) from error
    trouble: AgentError = UsageError("there is no temporary directory; name one with --log-dir")
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


def _unusable(path: object, error: OSError) -> AgentError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        why = f"{error.strerror}; raise the limit with ulimit -n"
        return HostFailed(f"cannot open the workers' logs in {path}: {why}")
    # From makedirs: what is there is a file.
    reason = "not a directory" if isinstance(error, FileExistsError) else error.strerror or str(error)
    return UsageError(f"cannot use log directory {path}: {reason}; name another one with --log-dir")
