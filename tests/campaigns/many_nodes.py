"""A thousand nodes on one c10d store: `make many-nodes`.

A real agent hosts the store, with the usual soft limit of 1,024 descriptors and a higher hard limit. The other nodes
are real drivers without workers, 250 to a process, each process with 1,024 descriptors and no more. All join one round,
finish, and the host exits 0.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from support.crowd import BOUND_S, CONF
from support.network import free_port

LIMIT = 1024
"""Descriptors of each process, where they are not raised."""
PER_PROCESS = 250


def play(count: int, hard: int) -> str:
    """A job of `count` nodes beside its host, which may raise its limit to `hard`. Returns what was measured; raises
    RuntimeError for what went wrong."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as undo:
        script = Path(folder) / "train.py"
        script.write_text("")  # the host's own worker finishes at once, and the host waits for the others
        endpoint = f"127.0.0.1:{free_port()}"
        flags = ["--nnodes", str(count + 1), "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "many"]
        flags += ["--rdzv-conf", CONF, "--exit-barrier-timeout", "900"]
        command = [*_limited(hard), sys.executable, "-m", "elastic_agent", *flags, str(script)]
        began = time.monotonic()
        host = undo.enter_context(
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder)
        )
        undo.callback(host.kill)
        lines = host.stderr
        assert lines is not None
        threading.Thread(target=lambda: [sys.stderr.write(line) for line in lines], daemon=True).start()
        crowds = [_crowd(endpoint, count, first, str(script)) for first in range(0, count, PER_PROCESS)]
        for each in crowds:
            undo.enter_context(each)
            undo.callback(each.kill)
        _expect(crowds, "running")
        gathered_s = time.monotonic() - began
        held = len(os.listdir(f"/proc/{host.pid}/fd"))
        for each in crowds:
            if each.stdin is not None:
                each.stdin.write("\n")
                each.stdin.flush()
        _expect(crowds, "finished")
        code = host.wait(BOUND_S)
        if code:
            raise RuntimeError(f"the host exited {code}")
        ended_s = time.monotonic() - began - gathered_s
        return (
            f"{count + 1} nodes: round 1 after {gathered_s:.1f} s, end {ended_s:.1f} s later; {held} descriptors at "
            f"the host, {2 * min(count, PER_PROCESS)} connections in a process of nodes"
        )


def _limited(hard: int) -> list[str]:
    limit = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {hard}))"
    return [sys.executable, "-c", f"import os, resource, sys; {limit}; os.execv(sys.argv[1], sys.argv[1:])"]


def _crowd(endpoint: str, count: int, first: int, script: str) -> subprocess.Popen[str]:
    here = min(PER_PROCESS, count - first)
    args = [endpoint, "many", str(count + 1), str(here), str(first), script]
    return subprocess.Popen(
        [*_limited(LIMIT), sys.executable, "-m", "support.crowd", *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def _expect(crowds: Sequence[subprocess.Popen[str]], what: str) -> None:
    for each in crowds:
        line = each.stdout.readline().strip() if each.stdout is not None else ""
        if line != what:
            raise RuntimeError(f"a process of nodes printed {line!r} instead of {what!r}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.many_nodes", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000, help="beside the host (default: 1000)")
    parser.add_argument("--hard", type=int, default=8192, help="hard limit of descriptors at the host (default: 8192)")
    options = parser.parse_args()
    try:
        sys.stdout.write(play(options.nodes, options.hard) + "\n")
    except RuntimeError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
