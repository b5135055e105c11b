"""Runs a table: looks when a look is due, asks the decisions, has the actions carried out.

Looks are made in threads of their own, because one that hangs must not delay the others; at most one at a time for each
watch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from ...rendezvous.text import duration
from ..actions.perform import Actor, Happening
from ..commands import FileSystems, NoReading
from ..decisions.watches import Reading, ReadingResult, WatchState, observe
from ..job_view import JobView
from ..readings.reader import AskingReader, Reader
from ..readings.readers import reader_of
from ..table.watch import Table, Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .state_file import Remembered

STUCK_S = 120.0
"""A look that takes longer is reported. The limits of what it asks are shorter."""


END_S = 10.0
"""How long actions that were begun may take when the program ends; a command is killed then."""


def clock() -> float:
    """Seconds since the host was started, its sleep included: the same for all processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _Running:
    """A watch with what is known of it."""

    def __init__(self, watch: Watch, reader: Reader) -> None:
        self.watch, self.reader = watch, reader
        self.state = WatchState()
        self.due_at = 0.0
        self.looking_since: float | None = None


class _Looks:
    """Threads that look. One of them waits for the next look, as looks are more often than not one at a time; while it
    is busy, others are started."""

    def __init__(self, looked: SimpleQueue[tuple[_Running, Reading] | None]) -> None:
        """looked: gets what was read."""
        self._looked = looked
        self._lock = threading.Lock()
        self._waits = self._ended = False
        self._next: SimpleQueue[_Running | None] = SimpleQueue()

    def begin(self, each: _Running) -> None:
        """Raises RuntimeError where the host refuses a thread."""
        with self._lock:
            waits, self._waits = self._waits, False
        if waits:
            self._next.put(each)
        else:
            threading.Thread(target=self._run, args=(each,), name="elastic-agent-reading", daemon=True).start()

    def end(self) -> None:
        """No more begin."""
        with self._lock:
            waits, self._waits, self._ended = self._waits, False, True
        if waits:
            self._next.put(None)

    def _run(self, each: _Running | None) -> None:
        while each is not None:
            reading = _read(each)
            with self._lock:
                stays = not (self._waits or self._ended)
                self._waits = self._waits or stays
            self._looked.put((each, reading))
            if not stays:
                return
            each = self._next.get()


class Runner:
    """Runs the watches of a table. Used by one thread."""

    def __init__(
        self,
        table: Table,
        actor: Actor,
        detail: Callable[[str], None] = lambda line: None,
        job: JobView | None = None,
    ) -> None:
        """`detail` gets a line for each reading. `job`: the one around it, where it runs in an agent."""
        self._actor, self._detail, self._job = actor, detail, job
        self._running = [_Running(watch, reader_of(watch, job)) for watch in table.watches]
        file_systems = FileSystems()
        for each in self._running:
            if isinstance(each.reader, AskingReader):
                each.reader.file_systems = file_systems
        self._looked: SimpleQueue[tuple[_Running, Reading] | None] = SimpleQueue()
        self._looks = _Looks(self._looked)
        self._to_do: SimpleQueue[Happening | None] = SimpleQueue()

    def once(self, remembered: Remembered, keep: Callable[[Remembered], None]) -> Remembered:
        """One look at everything, and what follows from it. `keep` is given what the next run must know before anything
        is done: what cannot be kept then is known to be done again. Returns the same."""
        from .state_file import Remembered  # an agent looks on and on, and has no such file

        for each in self._running:
            each.state = remembered.states.get(_identity(each.watch), WatchState())
            each.reader.samples = remembered.samples.get(_identity(each.watch), {})
            self._begin_reading(each)
        happenings = []
        deadline = clock() + STUCK_S
        while any(each.looking_since is not None for each in self._running) and clock() < deadline:
            happenings += self._take(deadline)
        for each in self._running:
            if each.looking_since is not None:
                happenings += self._judge(each, _stuck(each))
        self._looks.end()
        states = {_identity(each.watch): each.state for each in self._running}
        known = Remembered(states, {_identity(each.watch): each.reader.samples for each in self._running})
        keep(known)
        for happening in happenings:
            self._actor.act(happening)
        return known

    def run(self, stop: threading.Event) -> None:
        """Look on and on, until `stop` is set and `wake` called."""
        worker = threading.Thread(target=self._work, name="elastic-agent-actions", daemon=True)
        worker.start()
        for each in self._running:
            each.reader.keep()
        try:
            while not stop.is_set():
                now = clock()
                for each in self._running:
                    if now >= each.due_at:
                        self._begin(each, now)
                for happening in self._take(min(each.due_at for each in self._running)):
                    self._to_do.put(happening)
        finally:
            self._looks.end()
            self._to_do.put(None)
            worker.join(END_S)
            self._actor.close()
            for each in self._running:
                each.reader.close()

    def wake(self) -> None:
        """Have `run` look at `stop`. May be called from a signal handler and from any thread."""
        self._looked.put(None)

    def drop(self) -> None:
        """Say of each watch that has fired, or cannot be read, that it is watched no more. When `run` has ended."""
        for each in self._running:
            self._drop(each)

    def _drop(self, each: _Running) -> None:
        if each.state.reported_at is not None or each.state.blind:
            self._actor.dropped(each.watch)
        each.state = WatchState()

    def _begin(self, each: _Running, now: float) -> None:
        each.due_at = now + each.watch.every_s
        if self._job is not None and each.watch.whole_job and not self._job.elected:
            self._drop(each)  # another node watches it; should this one be elected, it begins anew
        elif each.looking_since is None:
            self._begin_reading(each)
        elif now - each.looking_since >= STUCK_S:
            for happening in self._judge(each, _stuck(each)):
                self._to_do.put(happening)

    def _begin_reading(self, each: _Running) -> None:
        each.looking_since = clock()
        try:
            self._looks.begin(each)
        except RuntimeError as error:  # the host refuses threads
            why = f"this host refuses a thread ({error}); raise ulimit -u"
            self._looked.put((each, Reading(ReadingResult.UNKNOWN, why)))

    def _take(self, until: float) -> list[Happening]:
        """What follows from the next reading, or nothing until then."""
        try:
            taken = self._looked.get(timeout=max(0.0, until - clock()))
        except Empty:
            return []
        if taken is None:
            return []
        each, reading = taken
        each.looking_since = None
        return self._judge(each, reading)

    def _judge(self, each: _Running, reading: Reading) -> list[Happening]:
        self._detail(f"{each.watch.title}: {reading.verdict.value}: {reading.text}")
        each.state, changes = observe(each.watch.rule, each.state, reading.verdict, clock())
        return [Happening(each.watch, change, reading.text) for change in changes]

    def _work(self) -> None:
        while (happening := self._to_do.get()) is not None:
            try:
                self._actor.act(happening)
            except Exception as error:  # noqa: BLE001 - the next alarm must still be acted upon
                self._detail(f"{happening.watch.title}: {type(error).__name__}: {error}")


def _read(each: _Running) -> Reading:
    try:
        return each.reader.read(clock())
    except NoReading as error:
        return Reading(ReadingResult.UNKNOWN, str(error))
    except Exception as error:  # noqa: BLE001 - a file of /proc in another form, say, must not end the other watches
        return Reading(ReadingResult.UNKNOWN, f"{type(error).__name__}: {error}")


def _identity(watch: Watch) -> str:
    """What a state is remembered by: with another threshold it is another watch."""
    return f"{watch.title}: {watch.threshold.text if watch.threshold else ''}"


def _stuck(each: _Running) -> Reading:
    return Reading(
        ReadingResult.UNKNOWN, f"no result of the reading for {duration(clock() - (each.looking_since or clock()))}"
    )
