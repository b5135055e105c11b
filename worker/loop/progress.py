"""The progress bar of a job: one line, on the first rank's terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TextIO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..data.cursors import Account
    from ..data.loader import Loader

DRAWN_EVERY_S = 0.1
_CELLS = 24


class Place(NamedTuple):
    """Where the job is."""

    epoch: int
    """Counted from 0."""
    done: int
    """Samples of the epoch that are trained on; batches, with a batch sampler of the user's."""
    total: int | None
    """Of the epoch; None where the length of the data is not known."""
    step: int


def place_of(account: Account, loaders: Mapping[str, Loader], epoch: int, steps: int) -> Place:
    """Where the outermost loader of the loop is; without one, the epoch and the step."""
    loader = loaders.get(account.outermost() or "")
    if loader is None:
        return Place(epoch, 0, None, steps)
    total = loader.total
    if account.cursors[loader.name].at_end and total:
        return Place(loader.epoch - 1, total, total, steps)
    return Place(loader.epoch, loader.position, total, steps)


class Progress:
    """`run.progress(loss=loss)`, after each step, draws the bar, ten times a second at most.

    Nothing is drawn, and no value is read, on other ranks and where stderr is no terminal. With `rich`, where it is
    installed, what the script prints stays above the bar.
    """

    def __init__(self, where: Callable[[], Place], rank: int, stream: TextIO | None = None) -> None:
        self._where = where
        self._stream = stream or sys.stderr
        self._shown = rank == 0 and _is_terminal(self._stream)
        self._drawn_at_s = -1.0
        self._bar: _Plain | _Rich | None = None

    def __call__(self, **values: Any) -> None:
        """values: shown beside the bar; numbers, or tensors of one element, which are read only when it is drawn."""
        if not self._shown or (now_s := time.monotonic()) - self._drawn_at_s < DRAWN_EVERY_S:
            return
        self._drawn_at_s = now_s
        place, shown = self._where(), "  ".join(f"{name} {_text(value)}" for name, value in values.items())
        try:
            if self._bar is None:
                self._bar = _bar(self._stream)
            self._bar.draw(place, shown, now_s)
        except (OSError, ValueError):  # the terminal is gone, or somebody has closed the stream: training goes on
            self._shown = False
            self.close()

    def close(self) -> None:
        """Ends the line; a later call begins another."""
        bar, self._bar = self._bar, None
        if bar is not None:
            with contextlib.suppress(OSError, ValueError):
                bar.close()


def _is_terminal(stream: Any) -> bool:
    """Scripts put objects of their own in the place of stderr, which write to a log, say; a process that was started
    without one has None there."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # it has no such method, or is closed
        return False


class _Plain:
    """Redraws one line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rate = _Rate()
        self._width = 0

    def draw(self, place: Place, values: str, now_s: float) -> None:
        text = f"epoch {place.epoch}  {_gauge(place)}  step {place.step}"
        if (left_s := self._rate.left_s(place, now_s)) is not None:
            text += f"  {int(left_s) // 60}:{int(left_s) % 60:02d} left"
        text += f"  {values}" if values else ""
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text)

    def close(self) -> None:
        self._stream.write("\n")
        self._stream.flush()


class _Rich:
    """The same with `rich`."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(file=stream)
        self._bars = Bars(
            *columns,
            TextColumn("{task.fields[values]}"),
            console=console,
            auto_refresh=False,
            # rich sends what is printed to its own console. What goes to a file or a pipe must still get there.
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=sys.stderr is stream,
        )
        self._task = self._bars.add_task("", epoch=0, values="")
        self._epoch = -1
        self._bars.start()
        # A job that is killed cannot show the cursor again.
        console.show_cursor(True)

    def draw(self, place: Place, values: str, now_s: float) -> None:
        if place.epoch != self._epoch:
            self._epoch = place.epoch
            self._bars.reset(self._task, total=place.total, completed=place.done)
        shown = f"step {place.step}  {values}"
        self._bars.update(self._task, completed=place.done, epoch=place.epoch, values=shown, refresh=True)

    def close(self) -> None:
        self._bars.stop()


class _Rate:
    """Samples a second since the epoch's first look."""

    def __init__(self) -> None:
        self._began: tuple[int, int, float] | None = None

    def left_s(self, place: Place, now_s: float) -> float | None:
        if self._began is None or self._began[0] != place.epoch:
            self._began = (place.epoch, place.done, now_s)
        _, done, began_s = self._began
        if place.total is None or place.done <= done:
            return None
        return (place.total - place.done) * (now_s - began_s) / (place.done - done)


def _bar(stream: TextIO) -> _Plain | _Rich:
    try:
        return _Rich(stream)
    except ImportError:
        return _Plain(stream)


def _gauge(place: Place) -> str:
    if not place.total:
        return str(place.done)
    filled = _CELLS * place.done // place.total
    return f"[{'#' * filled}{'.' * (_CELLS - filled)}] {place.done}/{place.total}"


def _text(value: Any) -> str:
    if hasattr(value, "item"):
        value = value.item()
    return f"{value:.4g}" if isinstance(value, float) else str(value)
