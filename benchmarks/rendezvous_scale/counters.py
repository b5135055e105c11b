"""What a process has spent: processor time, messages and bytes of its TCP connections, as the kernel counts them."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

_BYTES = struct.Struct("=QQ")
_BYTES_AT = 120
_MESSAGES = struct.Struct("=II")
_MESSAGES_AT = 152
"""`struct tcp_info` of linux/tcp.h: tcpi_bytes_acked and tcpi_bytes_received; tcpi_data_segs_in and tcpi_data_segs_out.
A request of a client that sends at once (TCP_NODELAY) is one segment with data, unless it is longer than one."""
_INFO_BYTES = _MESSAGES_AT + _MESSAGES.size


def connections(port: int) -> dict[str, int]:
    """All messages and bytes, both ways, of this process's open connections to `port`, and how many there are."""
    messages = total = count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as each:
                if each.type != socket.SOCK_STREAM or each.getpeername()[1] != port:
                    continue
                info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        except (OSError, IndexError, TypeError):  # closed meanwhile, listening, or no TCP socket
            continue
        count += 1
        total += sum(_BYTES.unpack_from(info, _BYTES_AT))
        messages += sum(_MESSAGES.unpack_from(info, _MESSAGES_AT))
    return {"connections": count, "messages": messages, "bytes": total}


def descriptors() -> int:
    """Open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def process_s() -> float:
    """Processor time of this process, in seconds."""
    return time.process_time()


def threads_s(named: str) -> float:
    """Processor time of this process's threads whose kernel name begins so, in seconds."""
    spent_ns = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text().startswith(named):
                spent_ns += int((task / "schedstat").read_text().split()[0])
        except OSError:  # the thread has ended
            continue
    return spent_ns / 1e9
