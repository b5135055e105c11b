"""The progress bar of a run: drawn on a terminal, and in nobody's way where there is none, or none any more."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.worker import Every, Run
from elastic_agent.worker.loop import progress
from elastic_agent.worker.loop.progress import Place, Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_there_is_no_bar_without_a_terminal_and_none_on_other_ranks() -> None:
    """Nor are values read: that of a GPU would wait for it."""

    class Unread:
        def item(self) -> float:
            raise AssertionError

    for rank, stream in ((0, io.StringIO()), (1, Terminal())):
        bar = Progress(lambda: Place(0, 1, 2, 1), rank, stream)
        bar(loss=Unread())
        bar.close()
        assert stream.getvalue() == ""


def test_the_plain_bar_shows_epoch_place_step_and_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    monkeypatch.setattr(progress, "DRAWN_EVERY_S", 0.0)
    run, screen = Run(tmp_path / "c", every=Every(seconds=None)), Terminal()
    run.progress = Progress(run.progress._where, 0, screen)
    loader = run.loader(DataLoader(TensorDataset(torch.arange(40)), batch_size=4))
    for _ in run.epochs(1):
        for _ in loader:
            run.step()
            run.progress(loss=torch.tensor(0.25))
    lines = screen.getvalue().split("\r")
    assert lines[1].strip() == "epoch 0  [##......................] 4/40  step 1  loss 0.25"
    assert lines[-1].startswith("epoch 0  [########################] 40/40  step 10")
    assert screen.getvalue().endswith("\n")


def test_the_bar_is_richs_where_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    screen = Terminal()
    bar = Progress(lambda: Place(2, 30, 40, 7), 0, screen)
    bar(loss=0.5)
    bar.close()
    assert isinstance(bar._bar, type(None))
    shown = screen.getvalue()
    assert all(text in shown for text in ("epoch 2", "30/40", "step 7", "loss 0.5"))
    assert "\x1b[?25h" in shown  # the cursor is shown again, before a kill could leave it hidden


def test_the_bar_is_drawn_ten_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    drawn = []
    monkeypatch.setattr(progress._Plain, "draw", lambda self, place, values, now_s: drawn.append(now_s))
    bar = Progress(lambda: Place(0, 1, 2, 1), 0, Terminal())
    began_s = time.monotonic()
    while time.monotonic() < began_s + 0.35:
        bar()
    bar.close()
    assert 2 <= len(drawn) <= 4


class Sink:
    """What scripts put in the place of stderr to have it in a log: no more than `write` and `flush`."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("stderr", ["none", "no stream of Python's", "closed"])
def test_a_run_begins_whatever_stands_in_the_place_of_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: str
) -> None:
    with open(os.devnull, "w") as closed:
        pass
    monkeypatch.setattr(sys, "stderr", {"none": None, "no stream of Python's": Sink(), "closed": closed}[stderr])
    run = Run(tmp_path, every=Every(seconds=None))
    run.progress(loss=0.5)
    run.close()


@pytest.mark.parametrize("installed", ["rich", "nothing"])
def test_a_terminal_that_is_gone_ends_no_training(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    """Closed with the connection that it was of, while the job runs on."""
    if installed == "nothing":
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    else:
        pytest.importorskip("rich")
    monkeypatch.setattr(progress, "DRAWN_EVERY_S", 0.0)
    screen, printed = Terminal(), sys.stdout
    bar = Progress(lambda: Place(0, 1, 2, 1), 0, screen)
    bar(loss=0.5)

    def gone(_: str) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(screen, "write", gone)
    for _ in range(3):
        bar(loss=0.25)
    bar.close()
    assert sys.stdout is printed


def test_what_a_script_prints_to_a_file_gets_there_beside_the_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python train.py > out.txt` on a terminal: rich would take for its own what stands on stdout."""
    pytest.importorskip("rich")
    screen = Terminal()
    with (tmp_path / "out.txt").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        bar = Progress(lambda: Place(0, 1, 2, 1), 0, screen)
        bar(loss=0.5)
        print("loss of the epoch: 0.5")
        bar.close()
    assert (tmp_path / "out.txt").read_text() == "loss of the epoch: 0.5\n"
    assert "loss of the epoch" not in screen.getvalue()
