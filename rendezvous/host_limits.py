"""Whether this host allows this process as many threads and descriptors as a library is about to take."""

from __future__ import annotations

import os
import threading


def need_room(descriptors: int, threads: int) -> None:
    """Raise OSError (descriptors) or RuntimeError (threads), as Python does, if this host refuses this process so many
    more. For what ends badly if it is refused one: gRPC aborts the process, or stands still for ever and lets no other
    thread of Python run."""
    opened: list[int] = []
    started: list[threading.Thread] = []
    enough = threading.Event()
    try:
        opened.extend(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(descriptors))
        for _ in range(threads):
            thread = threading.Thread(target=enough.wait, daemon=True)
            thread.start()
            started.append(thread)
    finally:
        enough.set()
        for descriptor in opened:
            os.close(descriptor)
        for thread in started:
            thread.join()
