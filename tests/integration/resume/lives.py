"""`lives.py SCRIPT < LIVES`: runs a script again and again in forked processes, so that frameworks are imported once.

LIVES is a JSON list; each life is {"ranks": N, "env": {...}, "imports": [...]}. Prints the exit status of each rank, as
`subprocess` has it, a JSON list a life. When a rank is killed, the others of its life are killed too, as an agent does.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from typing import Any

LIFE_S = 90.0
"""Longer than any life takes; one that takes longer is a hang, and is killed."""


def _fork(script: str, rank: int, life: dict[str, Any], port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setpgid(0, 0)
        os.environ.update(life["env"])
        if life["ranks"] > 1:
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": life["ranks"], "LOCAL_WORLD_SIZE": life["ranks"]}
            place |= {"GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "lives"}
            os.environ.update({name: str(value) for name, value in place.items()})
        sys.argv = [script]
        runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - a forked process must not go on with its parent's program
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def live(script: str, life: dict[str, Any]) -> list[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = [_fork(script, rank, life, port) for rank in range(life["ranks"])]
    ended: dict[int, int] = {}

    def kill(*_: Any) -> None:
        for pid in pids:
            if pid not in ended:
                os.killpg(pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, kill)
    signal.setitimer(signal.ITIMER_REAL, LIFE_S)
    while len(ended) < len(pids):
        pid, status = os.wait()
        ended[pid] = os.waitstatus_to_exitcode(status)
        if ended[pid] != 0:
            kill()
    signal.setitimer(signal.ITIMER_REAL, 0)
    return [ended[pid] for pid in pids]


def main() -> None:
    script, lives = sys.argv[1], json.load(sys.stdin)
    for name in lives[0].get("imports", []):
        importlib.import_module(name)
    for life in lives:
        print(json.dumps(live(script, life)), flush=True)


if __name__ == "__main__":
    main()
