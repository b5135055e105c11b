"""docs/page.png: the page of a job of two nodes that lost a worker: `python -m tests.project.page_picture` draws it."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from support.network import free_port
from support.outside.browser import Browser
from support.source_tree import ROOT

PICTURE = ROOT / "docs" / "page.png"
SCRIPT = """
import os, pathlib, sys, time
from elastic_agent.worker.loop import account
from elastic_agent.worker.loop.channel import channel_of
rank, kept = int(os.environ["RANK"]), pathlib.Path(sys.argv[1])
done = int(kept.read_text()) if kept.exists() else 0
channel_of(rank, int(os.environ["WORLD_SIZE"]), done)
while True:
    time.sleep(0.05 + 0.003 * rank)
    done += 1
    account.current.step()
    if done % 20 == 0:
        print(f"step {done}, loss {2.3 / (1 + done / 40):.3f}", flush=True)
    if done % 100 == 0:
        account.current.begin_save()
        account.current.took(done)
        time.sleep(0.02)
        if rank == 0:
            kept.write_text(str(done))
        account.current.end_save()
    if done == 150 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 2:
        os.kill(os.getpid(), 11)
"""
STEPS, SIZE = 340, (1100, 1400)


def main() -> None:
    """Draw it."""
    endpoint = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as cleared:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        flags = ["--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "2", "--rdzv-id", "job1", "--page",
                 "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--log-dir", "/dev/null"]  # fmt: skip
        argv = [sys.executable, "-m", "elastic_agent", *flags, str(script), f"{folder}/kept"]
        first = subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        cleared.callback(first.communicate)
        cleared.callback(first.terminate)
        assert first.stderr is not None
        address = next(each for each in map(_address, first.stderr) if each)
        next(line for line in first.stderr if "1 of at least 2 nodes joined" in line)
        second = subprocess.Popen(argv, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        cleared.callback(second.wait)
        cleared.callback(second.terminate)
        browser = Browser(Path(folder))
        cleared.callback(browser.close)
        browser.open(address)
        browser.wait_for(f"step {STEPS}")
        time.sleep(1.0)  # each rank's
        PICTURE.write_bytes(browser.picture(*SIZE))


def _address(line: str) -> str:
    return "".join(re.findall(r"the page of this job: (\S+)", line))


if __name__ == "__main__":
    main()
