"""Keeps one server process: starts what a line on stdin says, and kills it when stdin ends, by whatever hand that was.

Each line is a JSON list, the command; the answer is its process id. A program of its own, with one thread, because the
kernel's own way to tie a child's life to its parent's (PR_SET_PDEATHSIG) looks at the thread that forked.
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
    """Serve until stdin ends; the servers' own words go to `log`."""
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
