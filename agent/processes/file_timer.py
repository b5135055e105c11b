"""The file timer: workers set alarms for themselves over a named pipe, and one whose alarm rings is killed.

The other end is torch's (torch 2.13, `torch.distributed.elastic.timer`, `FileTimerClient`): a line of JSON for each
request, `{"version": 1, "pid": N, "scope_id": TEXT, "expiration_time": TIME, "signal": N}`, TIME in seconds since 1970;
a negative one takes the alarm back. As under torchrun, it is there if TORCHELASTIC_ENABLE_FILE_TIMER is 1. Under
torchrun the agent kills itself too; here the worker's end is a failure like any other, and the job may restart it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping

from .marked import signal_if_marked

SWITCH, FILE = "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"
READ_BYTES = 1 << 16
LONGEST_S = 60.0
"""How long the thread waits at most: the clock of the alarms, this host's, may be set meanwhile."""


class FileTimer:
    """Reads the pipe on a thread of its own, which exists only where the switch is on."""

    def __init__(self, path: str, mark: Callable[[], str], tell: Callable[[str, bool], None]) -> None:
        """Make the pipe `path`; a file of that name is removed. `mark`: NAME=VALUE in the environment of everything
        that may be killed. `tell` is called with sentences for people. Raises OSError."""
        self._path = path
        self._mark = mark
        self._tell = tell
        self._alarms: dict[tuple[int, str], tuple[float, int]] = {}
        """By process and scope: when, and with which signal."""
        self._rest = b""
        if os.path.lexists(path):
            os.unlink(path)
        os.mkfifo(path, 0o600)
        # For writing too, so that it never ends when a worker closes its side.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._ending = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="elastic-agent-timer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and remove the pipe."""
        os.eventfd_write(self._ending, 1)
        self._thread.join()
        os.close(self._fd)
        os.close(self._ending)
        if os.path.lexists(self._path):
            os.unlink(self._path)

    def _run(self) -> None:
        poll = select.poll()
        for fd in (self._fd, self._ending):
            poll.register(fd, select.POLLIN)
        while True:
            first = min((when for when, _ in self._alarms.values()), default=float("inf"))
            left_s = min(LONGEST_S, max(0.0, first - time.time()))
            ready = [fd for fd, _ in poll.poll(left_s * 1000)]
            if self._ending in ready:
                return
            if self._fd in ready:
                self._read()
            self._ring(time.time())

    def _read(self) -> None:
        lines = (self._rest + os.read(self._fd, READ_BYTES)).split(b"\n")
        self._rest = lines.pop()[-READ_BYTES:]
        for line in lines:
            try:
                request = json.loads(line)
                key = int(request["pid"]), str(request["scope_id"])
                when, signum = float(request["expiration_time"]), int(request["signal"])
            except (ValueError, KeyError, TypeError):
                self._tell(f"the file timer cannot read {line[:200]!r}; it is no request of torch's timer", False)
                continue
            if when < 0:
                self._alarms.pop(key, None)
            else:
                self._alarms[key] = when, signum

    def _ring(self, now: float) -> None:
        rung = sorted((when, key, signum) for key, (when, signum) in self._alarms.items() if when <= now)
        for pid in dict.fromkeys(key[0] for _, key, _ in rung):
            mine = [(scope, signum) for _, (owner, scope), signum in rung if owner == pid]
            scope, signum = next(((scope, signum) for scope, signum in mine if signum > 0), (mine[0][0], 0))
            self._alarms = {key: alarm for key, alarm in self._alarms.items() if key[0] != pid}
            if signum and signal_if_marked(pid, self._mark().encode(), signum):
                name = signal.Signals(signum).name if signum in set(signal.Signals) else str(signum)
                self._tell(f"the timer {scope!r} of process {pid} has expired; it was sent {name}", False)
            else:
                self._tell(f"the timer {scope!r} of process {pid} has expired; nothing is sent to it", False)


def timer_of(env: Mapping[str, str], mark: Callable[[], str], tell: Callable[[str, bool], None]) -> FileTimer | None:
    """The file timer, if `env`, which the workers get, asks for it. Raises OSError."""
    if env.get(SWITCH) != "1" or not env.get(FILE):
        return None
    return FileTimer(env[FILE], mark, tell)
