"""A worker of 60 steps of 50 ms that counts its seconds as the worker library does, without torch.

counting_steps.py LOG CHECKPOINT: a line a step in LOG; every tenth step is kept in CHECKPOINT, which takes 20 ms.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from elastic_agent.worker.loop import account
from elastic_agent.worker.loop.channel import channel_of

STEPS, STEP_S, SAVE_S, EVERY = 60, 0.05, 0.02, 10

if __name__ == "__main__":
    rank, kept = os.environ["RANK"], Path(sys.argv[2])
    done = int(kept.read_text()) if kept.exists() else 0
    channel_of(int(rank), int(os.environ["WORLD_SIZE"]), done)
    counted = account.current
    assert counted is not None, "no agent counts"
    with open(sys.argv[1], "a", buffering=1) as log:
        while done < STEPS:
            time.sleep(STEP_S)
            done += 1
            counted.step()
            log.write(f"{rank} {done}\n")
            if done % EVERY == 0:
                counted.begin_save()
                counted.took(done)
                time.sleep(SAVE_S)
                mine = kept.with_suffix(f".{rank}")
                mine.write_text(str(done))
                mine.replace(kept)
                counted.end_save()
