"""Runs one server process: starts the command on each line of stdin, and kills the server when stdin ends, however the
test run ended.

Each line is a JSON list, the command; the answer is its process id. A program of its own, with one thread, because
PR_SET_PDEATHSIG, by which the kernel kills a child when its parent ends, takes effect when the thread that forked ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def main(log: str) -> None:
    """Serve until stdin ends; the servers' output goes to the file `log`."""
    server: subprocess.Popen[bytes] | None = None
    with open(log, "ab") as out:
        for line in sys.stdin:
            _end(server)
            server = subprocess.Popen(
                json.loads(line),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 - there is one thread
            )
            print(server.pid, flush=True)
        _end(server)


def _end(server: subprocess.Popen[bytes] | None) -> None:
    if server is not None:
        server.kill()
        server.wait()


def _die_with(parent: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None)

    def bind() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return bind


if __name__ == "__main__":
    main(sys.argv[1])
