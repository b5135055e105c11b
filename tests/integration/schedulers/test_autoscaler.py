"""examples/autoscaler.py: a scheduler of one's own, on a real job over network namespaces."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from support.network import free_port, virtual_switch, why_unavailable
from support.source_tree import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_unavailable()), reason=why_unavailable() or "there are namespaces"),
]
SCRIPT = Path(__file__).with_name("scaling.py")


class Output:
    """What the autoscaler prints, as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.text, self._process = "", process
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True, name="test-autoscaler")
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.text += line
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait(self, pattern: str, bound_s: float = 200.0) -> re.Match[str]:
        deadline = time.monotonic() + bound_s
        with self._changed:
            while not (found := re.search(pattern, self.text)):
                left_s = deadline - time.monotonic()
                assert left_s > 0 and self._process.poll() is None, f"no {pattern!r}:\n{self.text}"  # noqa: PT018
                self._changed.wait(left_s)
        return found

    def close(self) -> None:
        self._thread.join(20)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.mark.campaign  # what a node adds is measured, so other work on this host changes what the autoscaler decides
def test_the_autoscaler_grows_while_that_pays_shrinks_where_it_does_not_and_replaces_a_dead_node(
    tmp_path: Path,
) -> None:
    """Work of 0.6 s a step and an exchange of 0.04 s a node: 1.6 steps/s on one node, 2.6 on two, 3.1 on three, and 3.2
    on four, which is less than a tenth more. Node 1 is killed like a host that loses power."""
    with virtual_switch() as switch:
        names = [f"node{number}" for number in range(8)]
        for name in names:
            switch.add(name)
        within = " ".join(switch.within("{}"))
        endpoint = f"{switch.address.rpartition('.')[0]}.2:{free_port()}"
        argv = [
            sys.executable, str(ROOT / "examples" / "autoscaler.py"), "--nodes", "1:4", "--endpoint", endpoint,
            "--within", within, "--for", "400", str(SCRIPT), str(tmp_path / "checkpoints"), "0.6", "0.04",
        ]  # fmt: skip
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        process = subprocess.Popen(
            argv, cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output = Output(process)
        try:
            victim = output.wait(r"starting node1 \(pid (\d+)\): \d\.\d steps/s on 1, and one more would get a place")
            output.wait(r"starting node2 \(pid \d+\): \d\.\d steps/s on 2")
            drained = output.wait(r"draining (node\d): \d\.\d steps/s on \d, \d\.\d on one less")
            assert drained[1] != "node1", "the last one to come is the first to go"
            output.wait(rf"{drained[1]} ended with 75")
            os.kill(int(victim[1]), signal.SIGKILL)
            output.wait(r"node1 ended with -9\n.*starting node\d \(pid \d+\): node1 died")
            output.wait(r"node1 died(?s:.*)round \d+ begins with [2-4] nodes")
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
            output.close()
            assert re.search(r"all save and end; until now .*useful steps \d+ %(?s:.*)node0 ended with 83", output.text)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # it ends its nodes
                process.wait(120)
            output.close()
