"""A worker that exchanges data with its peers at every step, as in an all-reduce. Its environment says how and at which
rank it fails.

Plain Python, so that hundreds of jobs take minutes. When a peer is gone or late it raises the error of gloo in torch
2.13, and so do all that exchange data with it then, as with gloo.
"""

import os
import socket
import sys
import time
from pathlib import Path

CLOSED = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5508. This is "
    "typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error."
)
WAITED = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms for "
    "recv operation to complete"
)
ABORTED = (
    "[rank{rank}]:[E1121 18:33:11.1 ProcessGroupNCCL.cpp:2028] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process "
    "group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error, "
    "NCCL version 2.27.5\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.\nterminate called after throwing an instance of 'c10::DistBackendError'\n"
)
"""What torch's watchdog of NCCL prints before it aborts the process."""
TIMEOUT_S = 2.0
CONNECT_S = 30.0
STEP_S = 0.01


class Mesh:
    """A connection to every peer."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / f"{rank}.new"))
        listener.listen(size)
        (folder / f"{rank}.new").rename(folder / str(rank))
        listener.settimeout(CONNECT_S)
        self.peers = [self._connect(folder / str(peer)) for peer in range(rank)]
        self.peers += [listener.accept()[0] for _ in range(rank + 1, size)]
        for peer in self.peers:
            peer.settimeout(TIMEOUT_S)

    @staticmethod
    def _connect(path: Path) -> socket.socket:
        until = time.monotonic() + CONNECT_S
        while time.monotonic() < until:
            peer = socket.socket(socket.AF_UNIX)
            try:
                peer.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.02)
            else:
                return peer
        raise RuntimeError(WAITED)

    def exchange(self) -> None:
        if trouble := self._trouble():
            raise RuntimeError(trouble)

    def _trouble(self) -> str:
        """Exchange a byte with every peer; returns the error, empty if there is none."""
        try:
            for peer in self.peers:
                peer.sendall(b".")
            alive = all(peer.recv(1) for peer in self.peers)
        except TimeoutError:
            return WAITED
        except OSError:
            return CLOSED
        return "" if alive else CLOSED

    def close(self) -> None:
        for peer in self.peers:
            peer.close()


def fail(kind: str, mesh: Mesh | None = None) -> None:
    """Fail in this way, as the worker at fault. Returns only where a signal suspended the process."""
    signals = {"killed": 9, "segfault": 11, "terminated": 15, "stopped": 19}
    if kind in signals:
        os.kill(os.getpid(), signals[kind])
    elif kind == "exit 3":
        os._exit(3)
    elif kind == "exit 0":
        sys.exit(0)
    elif kind == "hang":
        time.sleep(1000)
    elif kind == "slow death":
        assert mesh is not None
        mesh.close()
        time.sleep(float(os.environ["TEST_SLOW_S"]))
        raise ValueError("boom")
    elif kind == "failing clean-up":
        assert mesh is not None
        try:
            raise ValueError("boom")
        finally:
            mesh.close()
            mesh.exchange()
    elif kind == "lost its storage":
        raise ConnectionResetError(104, "Connection reset by peer")
    else:
        raise ValueError("boom")


def give_up(kind: str, rank: int, error: RuntimeError) -> None:
    """React to the loss of a peer, as a worker not at fault; returns where the error is to be raised."""
    if kind == "wrapped by the peers":
        raise LookupError("step failed") from error
    if kind == "masked by the peers":
        raise LookupError("step failed") from None
    if kind == "swallowed by the peers":
        sys.exit(7)
    if kind == "peers abort":
        sys.stderr.write(ABORTED.format(rank=rank))
        sys.stderr.flush()
        os.abort()


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder, kind = Path(os.environ["TEST_MESH"]), os.environ["TEST_KIND"]
    at_fault = rank == int(os.environ["TEST_BAD"])
    if kind == "import" and at_fault:
        raise ImportError("no module named 'boom'")
    mesh = Mesh(folder, rank, size)
    for step in range(100000):
        if at_fault and step == int(os.environ["TEST_STEP"]):
            fail(kind, mesh)
        try:
            mesh.exchange()
        except RuntimeError as error:
            if not at_fault:
                give_up(kind, rank, error)
            raise
        if step == 3:
            (folder / f"runs.{rank}").touch()
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
