"""The worker `obedient.py`, which also writes from when until when it runs: into a file of its own in TEST_STAMPS.

The file is named NODE.ROUND.PID, and holds two times of CLOCK_BOOTTIME in nanoseconds, of its start and of now."""

import mmap
import os
import runpy
import threading
import time
from pathlib import Path

STAMP_S = 0.005


def stamp() -> None:
    name = f"{os.environ['TEST_NODE']}.{os.environ['ELASTIC_AGENT_ROUND']}.{os.getpid()}"
    path = Path(os.environ["TEST_STAMPS"]) / name
    began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    path.write_bytes(began.to_bytes(8, "little") * 2)
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 16)
    never = threading.Event()
    while not never.wait(STAMP_S):
        memory[8:16] = time.clock_gettime_ns(time.CLOCK_BOOTTIME).to_bytes(8, "little")


threading.Thread(target=stamp, daemon=True).start()
runpy.run_path(str(Path(__file__).with_name("obedient.py")), run_name="__main__")
