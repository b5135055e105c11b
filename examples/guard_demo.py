"""A demonstration of guardrails on the digits job: save switch, kill switch, preemption, a leak and a full disc.

    python examples/guard_demo.py

Each is real: files that somebody makes, the signal that batch systems send, memory that is not given back, and a small
file system (which takes root) that fills. Exits 0 if everything happened as it should.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from elastic_agent.examples.demo import DemoFailed, Node, Transcript

SCRIPT = Path(__file__).parent / "digits" / "train.py"
EPOCH_SECONDS = "0.7"
BOUND_S = 900.0
"""How long it waits for one line, or one end, while the node runs. Six times it starts two workers, each of which takes
3 s of a processor to import torch and scikit-learn: minutes, where other work of the host goes first."""
PATIENT = ("--settle-timeout", "300", "--shutdown-timeout", "300")
"""For the same reason: workers that are asked to save and to end are given more than the usual 60 and 30 s."""
WATCH = ("elastic-agent-watch", "elastic_agent.control.watcher")
HIDES = (
    r"^checkpoint of step|^resumed at step|the store answers|waiting for a place|0 of at least 1 node"
    r"|workers of round \d+ are gone|summary for programs"
)
"""Lines that say the same each time."""
WATCHES = """\
notify = ["exec:true"]
pause = "0 s"
job = "digits"
save_switch = "save"
kill_switch = "stop"

[[watch]]
what = "worker-memory"
process = "digits/train\\\\.py"
limit = "4 GB"
threshold = "1 hour left"
every = "0.5 s"
do = ["notify", "save"]
"""
DISC_WATCH = """
[[watch]]
what = "disk"
path = "disc"
threshold = "50 % free"
every = "0.5 s"
do = ["notify", "stop"]
"""


class Show:
    """One folder with the switches, and the digits job in it, started again and again."""

    def __init__(self, transcript: Transcript, folder: Path) -> None:
        self.transcript, self.folder = transcript, folder
        self.stop, self.save = folder / "stop", folder / "save"
        self._nodes: list[Node] = []

    def say(self, text: str) -> None:
        self.transcript.add("demo", text)

    def job(self, checkpoints: str, *options: str) -> Node:
        """Two workers of the digits job."""
        flags = ["--standalone", "--nproc-per-node", "2", "--kill-switch", str(self.stop)]
        flags += ["--save-switch", str(self.save), "--forward-signals", "USR1", *PATIENT]
        training = [os.path.relpath(SCRIPT), "--checkpoint-dir", str(self.folder / checkpoints)]
        return self._start("job", flags, [*training, "--epoch-seconds", EPOCH_SECONDS, *options])

    def watch(self, watches: str) -> Node:
        """The program that looks from outside, with these watches."""
        (self.folder / "watches.toml").write_text(watches)
        return self._start("watch", [str(self.folder / "watches.toml")], [], WATCH)

    def wait(self, node: Node, pattern: str) -> None:
        self.transcript.wait({node.name}, pattern)

    def stopped(self, job: Node) -> None:
        """By the kill switch: whole, without a failure. Raises DemoFailed."""
        self.wait(job, "stopped at step")
        self.wait(job, "all workers of this node exited 0")
        self.end(job, 83)

    def end(self, node: Node, wanted: int, signum: int | None = None) -> None:
        """Raises DemoFailed if its exit status is another."""
        status = node.end(signum)
        self.say(f"{node.name} ended with {status}")
        if status != wanted:
            raise DemoFailed(f"{node.name} ended with {status}, not {wanted}")

    def close(self) -> None:
        for node in self._nodes:
            node.end(signal.SIGTERM)

    def _start(
        self,
        kind: str,
        flags: list[str],
        training: list[str],
        program: tuple[str, str] = ("elastic-agent", "elastic_agent"),
    ) -> Node:
        self._nodes.append(Node(self.transcript, f"{kind}{len(self._nodes) + 1}", flags, training, program))
        return self._nodes[-1]


def switches_and_preemption(show: Show) -> None:
    """One training, which is stopped twice and loses nothing."""
    job = show.job("kept")
    show.wait(job, "epoch 2: ")
    show.say(f"SAVE SWITCH: echo before the new data > {show.save}")
    show.say("all ranks save at one step and go on; the content labels the checkpoint, which then stays")
    show.save.write_text("before the new data\n")
    show.wait(job, "all ranks save at")
    show.wait(job, "epoch 4: ")
    labels = {label for path in show.folder.glob("kept/step-*/manifest.json") if (label := _manifest(path)["label"])}
    if labels != {"before the new data"} or show.save.exists():
        raise DemoFailed(f"the save switch made no checkpoint with its label, but {labels or 'none'}")
    show.say("a checkpoint has the label, and the switch is gone")

    show.say(f"KILL SWITCH: touch {show.stop}")
    show.say("all ranks save at one step and exit 0; 83 says: do not start me again")
    show.stop.touch()
    show.stopped(job)
    show.say("a job that was queued meanwhile starts, and finds the file")
    began_s = time.monotonic()
    show.end(show.job("kept"), 83)
    show.say(f"it took {time.monotonic() - began_s:.1f} s, and started no worker; the file is removed now")
    show.stop.unlink()

    show.say("PREEMPTION: the job goes on, until a batch system sends SIGUSR1 ahead of its limit")
    job = show.job("kept")
    show.wait(job, "resuming at step")
    show.wait(job, "epoch 6: ")
    show.end(job, 75, signal.SIGUSR1)
    show.say("75 says: start me again, which is done")
    job = show.job("kept")
    show.wait(job, "resuming at step")
    show.wait(job, "every sample of every epoch exactly once")
    show.end(job, 0)
    show.say("four starts, and no sample was lost or repeated")


def leak(show: Show) -> None:
    """A watch from outside asks for a checkpoint while there is memory for one."""
    show.say("A LEAK: the script keeps 5 MB more with each step")
    job = show.job("leaking", "--leak", "5", "--epochs", "40")
    show.wait(job, "epoch 1: ")
    watch = show.watch(WATCHES)
    show.wait(watch, r"grows by .* left \(limit ")
    show.wait(job, "all ranks save at")
    show.say("the checkpoint is made; somebody who was told can look at it in time")
    show.end(watch, 143, signal.SIGTERM)
    show.end(job, 75, signal.SIGTERM)


def full_disc(show: Show) -> None:
    """A watch from outside stops the job while there is room for its last checkpoint."""
    show.say("A FULL DISC: checkpoints are on a file system of 128 MB, which something else fills")
    with small_disc(show.folder / "disc") as there:
        if not there:
            show.say("mounting one takes root; this part is left out")
            return
        job = show.job("disc/kept", "--epochs", "40")
        show.wait(job, "epoch 1: ")
        watch = show.watch(WATCHES + DISC_WATCH)
        (show.folder / "disc" / "something-else").write_bytes(bytes(80_000_000))
        show.wait(watch, "made the kill switch")
        show.stopped(job)
        show.end(watch, 143, signal.SIGTERM)
        show.stop.unlink()
        show.say("there was room for the last checkpoint; when there is more, the job goes on from it")
        (show.folder / "disc" / "something-else").unlink()
        job = show.job("disc/kept", "--epochs", "40")
        show.wait(job, "resuming at step")
        show.end(job, 75, signal.SIGTERM)


@contextlib.contextmanager
def small_disc(path: Path) -> Iterator[bool]:
    """An empty file system in memory at the path; whether it could be mounted."""
    libc = ctypes.CDLL(None, use_errno=True)
    path.mkdir()
    there = libc.mount(b"tmpfs", bytes(path), b"tmpfs", 0, b"size=128m") == 0
    try:
        yield there
    finally:
        if there:
            libc.umount2(bytes(path), 2)  # MNT_DETACH: also where a process still has its working directory there


def _manifest(path: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(path.read_text())
    return content


def main() -> int:
    """Returns the exit status."""
    transcript = Transcript(HIDES, BOUND_S)
    with tempfile.TemporaryDirectory(prefix="guards-") as folder:
        show = Show(transcript, Path(folder))
        show.say("what people and batch systems ask of a training, and what watches notice; a minute on two cores")
        try:
            switches_and_preemption(show)
            leak(show)
            full_disc(show)
            show.say("that was all; docs/guardrails.md has each guard with its flags, its cost and its limits")
        except DemoFailed as failure:
            show.say(f"the demo failed: {failure}")
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            show.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
