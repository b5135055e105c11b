"""The end of a rank whose disk is full, too: at once, with the status that its launcher reads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.source_tree import ROOT

THREAD = "import threading; threading.Thread(target=threading.Event().wait).start()\n"
OF_A_LOOP = """
import logging
from elastic_agent.worker.failing import fail_together
with fail_together(logging.getLogger("elastic_agent"), 0):
    raise ValueError("the sample is not a number")
"""
OF_A_TRAINER = """
from elastic_agent.trainer.in_worker.ending import ending
from elastic_agent.worker.errors import WrongState
class Channel:
    def failed(self, *what): pass
with ending(Channel(), 0):
    raise WrongState("of another model")
"""


@pytest.mark.parametrize(("script", "status"), [(OF_A_LOOP, 1), (OF_A_TRAINER, 93)], ids=["loop", "trainer"])
def test_a_rank_ends_where_its_error_file_cannot_be_written(script: str, status: int) -> None:
    """It does not wait for a thread that never ends, and says what could not be written."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".typing"), "TORCHELASTIC_ERROR_FILE": "/dev/full"}
    ended = subprocess.run(
        [sys.executable, "-c", THREAD + script], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == status, ended.stderr
    assert "rank 0 cannot write why it" in ended.stderr
    assert "No space left on device" in ended.stderr
