"""Answers an agent that asks what this process does: its Python stacks, the collectives that torch has recorded, and
what of its memory on GPUs it does not need.

A thread waits at a Unix socket, so that a main thread that waits in C, having let the interpreter go, is told of too.
Started only where an agent watches. torch's flight recorder is on by default for gloo; for NCCL it needs
TORCH_FR_BUFFER_SIZE or TORCH_NCCL_TRACE_BUFFER_SIZE (torch 2.13, `torch/csrc/distributed/c10d/FlightRecorder.hpp`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import sys
import threading

STACKS_MAX = 1 << 20
"""Bytes of stacks that are sent."""


def answer(path: str) -> None:
    """Answer from now on, at a socket of this name."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    server.settimeout(None)  # whatever the script has given to socket.setdefaulttimeout
    try:
        server.bind(path)
        server.listen(2)
        threading.Thread(target=_serve, args=(server,), name="elastic-agent-answers", daemon=True).start()
    except (OSError, RuntimeError):
        server.close()  # the agent has py-spy, or what the kernel tells; a training does not end for want of a watch


def _serve(server: socket.socket) -> None:
    with server:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5.0)
                told = {"stacks": stacks(), "flight": flight(), "cached": cached()}
                connection.sendall(json.dumps(told).encode())


def stacks() -> str:
    """Of all threads of this process, as faulthandler writes them."""
    descriptor = os.memfd_create("stacks", os.MFD_CLOEXEC)
    try:
        faulthandler.dump_traceback(descriptor, all_threads=True)
        return os.pread(descriptor, STACKS_MAX, 0).decode(errors="replace")
    finally:
        os.close(descriptor)


def flight() -> dict[str, object]:
    """What torch's flight recorder holds; empty where torch has none, or records nothing."""
    found: dict[str, object] = {}
    c10d = sys.modules.get("torch._C._distributed_c10d")
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        if (dump := getattr(c10d, name, None)) is not None and not found.get("entries"):
            with contextlib.suppress(Exception):  # of torch's C++, where no group was made
                found = json.loads(dump())
    return found


def cached() -> dict[str, int]:
    """By UUID of a GPU: bytes that torch holds there and does not use, which `torch.cuda.empty_cache()` gives back.
    Empty where this process uses none."""
    torch = sys.modules.get("torch")
    found: dict[str, int] = {}
    with contextlib.suppress(AttributeError, RuntimeError):  # half imported, or without CUDA
        if torch is not None and torch.cuda.is_initialized():
            for device in range(torch.cuda.device_count()):
                held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
                found[str(torch.cuda.get_device_properties(device).uuid)] = int(held)
    return found
