"""A minimal launcher for one host: starts workers; stops and restarts all of them when one fails.

Of torchrun's flags it has `--standalone`, `--nproc-per-node` and `--max-restarts`. It shows the cost of the workers
alone (`--a floor`), and the harness is tested with it.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys


def start(rank: int, world: int, port: int, argv: list[str]) -> int:
    """Start one worker; returns its pid."""
    env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    full = {**os.environ, **{name: str(value) for name, value in env.items()}}
    return os.posix_spawn(sys.executable, [sys.executable, "-u", *argv], full)


def run_round(world: int, argv: list[str]) -> bool:
    """Start all workers and wait for them; when one fails, stop the others. Returns whether all exited 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    left = {start(rank, world, port, argv) for rank in range(world)}
    failed = False
    while left:
        pid, status = os.waitpid(-1, 0)
        left.discard(pid)
        if status and not failed:
            failed = True
            for other in left:
                os.kill(other, signal.SIGTERM)
    return not failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--nproc-per-node", type=int, default=1)
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    return 0 if any(run_round(args.nproc_per_node, args.command) for _ in range(args.max_restarts + 1)) else 1


if __name__ == "__main__":
    sys.exit(main())
