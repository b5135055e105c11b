"""A TCPStore of torch in a process of its own, as a stranger to the job."""

from __future__ import annotations

import subprocess
import sys

STORE = """
import sys
from datetime import timedelta
from torch.distributed import DistNetworkError, TCPStore
store = None
for line in sys.stdin:
    verb, *words = line.split()
    if verb in ("host", "join"):
        hosting, limit = verb == "host", timedelta(seconds=20)
        store = TCPStore("127.0.0.1", int(words[0]), is_master=hosting, wait_for_workers=False, timeout=limit)
        print("ready", flush=True)
        continue
    if verb == "leave":
        store = None
        print("left", flush=True)
        continue
    if verb == "get":
        print(store.get(words[0]).hex(), flush=True)
        continue
    if verb == "add":
        print(store.add(words[0], int(words[1])), flush=True)
        continue
    try:
        store.set(words[0], bytes.fromhex(words[1]) if len(words) > 1 else b"")
        print(store.check([words[0]]), flush=True)
    except DistNetworkError:
        print("gone", flush=True)  # what was set ended the job, and the store with it
"""


class TorchStore:
    """torch's TCPStore in a separate process, as client or server of one store after another."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", STORE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def host(self, port: int) -> None:
        assert self._ask(f"host {port}") == "ready"

    def join(self, port: int) -> None:
        assert self._ask(f"join {port}") == "ready"

    def leave(self) -> None:
        assert self._ask("leave") == "left"

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def set(self, key: str, value: bytes) -> None:
        assert self._ask(f"set {key} {value.hex()}") in ("True", "gone")

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(f"add {key} {amount}"))

    def get(self, key: str) -> bytes:
        return bytes.fromhex(self._ask(f"get {key}"))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
