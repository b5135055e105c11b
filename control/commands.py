"""Commands and questions that are answered in time or given up: the place of this room that starts processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..rendezvous.text import duration, shorten
from .exchange import OUTPUT_MAX, exchange

WHY_MAX = 200
"""Characters of its error that are shown."""
PROBE_S = 10.0
"""How long a file system has to answer, where the watch does not say."""
PROBE = Path(__file__).parent / "readings" / "probe.py"
KILLED_S = 0.5
"""How long a killed process has to be gone. One that waits for a dead file server may not be."""


class NoReading(Exception):
    """What was asked gave no answer; the text says why."""


class TimedOut(NoReading):
    """It gave none in time."""


class Asker:
    """Runs one command at a time. While one still exists after SIGKILL, no second one is started."""

    def __init__(self) -> None:
        self.keeps = False
        """Whether the process that looks at a file system is kept for the next time that the same is asked: to start
        one takes a hundred times as long as an answer. `close` ends it."""
        self._keeping = threading.Lock()
        self._stuck: subprocess.Popen[str] | None = None
        self._kept: subprocess.Popen[str] | None = None
        self._running: subprocess.Popen[str] | None = None
        self._ended = threading.Event()

    def run(self, argv: Sequence[str], limit_s: float, stdin: str = "", *, env: Mapping[str, str] | None = None) -> str:
        """What the command printed, with this environment or our own. Raises NoReading if it cannot be started, fails,
        or takes longer than `limit_s`."""
        if self._ended.is_set():
            raise NoReading(f"{os.path.basename(argv[0])} is not started: the watches have ended")
        process = self._start(argv, env)
        with self._keeping:
            self._running, ended = process, self._ended.is_set()
        try:
            if ended:
                _kill_group(process)
            out, err = exchange(process, stdin, limit_s)
        except subprocess.TimeoutExpired:
            raise self._late(process, limit_s) from None
        finally:
            with self._keeping:
                self._running = None
        if self._ended.is_set() and process.returncode == -signal.SIGKILL:
            raise NoReading(f"{_name(process)} was killed: the watches have ended")
        return _printed(process, out, err)

    def ask(self, question: str, path: str, limit_s: float = PROBE_S) -> list[list[float]]:
        """The numbers that `probe` prints, line by line. Raises NoReading, with the file system named."""
        argv = [sys.executable, "-I", "-S", str(PROBE), question, path]
        try:
            text = self._ask_kept(argv, limit_s) if self.keeps else self.run(argv, limit_s, "\n")
        except TimedOut:
            raise TimedOut(f"no answer from the file system of {path} in {duration(limit_s)}") from None
        except NoReading as error:
            raise NoReading(str(error).partition("with status 1: ")[2] or str(error)) from None
        return [[float(number) for number in line.split()] for line in text.splitlines() if line]

    def close(self) -> None:
        """End what is kept and what runs, and reap what was killed, if it is gone. Nobody asks any more."""
        with self._keeping:
            self.keeps, kept, self._kept = False, self._kept, None
            running = self._running
        if running is not None and running.poll() is None:
            _kill_group(running)  # whoever waits for it reaps it
        if kept is not None:
            self._kill(kept)
        if self._stuck is not None:
            self._stuck.poll()

    def end(self) -> None:
        """As `close`; from now on no command is started."""
        self._ended.set()
        self.close()

    def _ask_kept(self, argv: Sequence[str], limit_s: float) -> str:
        """Raises NoReading."""
        deadline = time.monotonic() + limit_s
        with self._keeping:
            kept, self._kept = self._kept, None
        process = kept or self._start(argv)
        if process.stdin is None or process.stdout is None:
            raise AssertionError("a kept process has pipes")
        try:
            process.stdin.write("\n")
            process.stdin.flush()
        except BrokenPipeError:  # somebody has killed it since
            self._kill(process)
            return self._ask_kept(argv, deadline - time.monotonic())
        answer, ready = b"", select.poll()
        ready.register(process.stdout, select.POLLIN)
        while not answer.endswith(b"\n\n") and answer != b"\n":
            if not ready.poll(max(0.0, 1e3 * (deadline - time.monotonic()))):
                raise self._late(process, limit_s)
            part = os.read(process.stdout.fileno(), OUTPUT_MAX)
            if not part:
                return _printed(process, answer.decode("utf-8", "replace"), process.communicate()[1])
            answer += part
        with self._keeping:
            if self.keeps:
                self._kept = process
        if self._kept is not process:  # closed meanwhile
            self._kill(process)
        return answer.decode("utf-8", "replace")

    def _start(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Raises NoReading."""
        name = os.path.basename(argv[0])
        if self._stuck is not None:
            if self._stuck.poll() is None:
                raise TimedOut(
                    f"{name} (pid {self._stuck.pid}) still exists after SIGKILL, so no second one is started"
                )
            self._stuck = None
        try:
            # Its own session: a command's children are killed with it. From /, which does not vanish or hang.
            return subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                cwd="/",
                env=env,
            )
        except OSError as error:
            raise NoReading(f"{name} cannot be started: {error.strerror}") from None

    def _late(self, process: subprocess.Popen[str], limit_s: float) -> TimedOut:
        self._kill(process)
        return TimedOut(f"no answer from {_name(process)} in {duration(limit_s)}")

    def _kill(self, process: subprocess.Popen[str]) -> None:
        _kill_group(process)
        try:
            process.communicate(timeout=KILLED_S)
        except subprocess.TimeoutExpired:
            self._stuck = process
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def _kill_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass  # a command with other rights, such as sudo; it is left alone


def _name(process: subprocess.Popen[str]) -> str:
    argv: Sequence[str] = process.args  # type: ignore[assignment]
    return os.path.basename(argv[0])


def _printed(process: subprocess.Popen[str], out: str, err: str) -> str:
    """What a process printed that has ended. Raises NoReading where it failed."""
    if process.returncode != 0:
        why = shorten(" ".join(err.split()), WHY_MAX) or "it printed no error"
        raise NoReading(f"{_name(process)} ended with status {process.returncode}: {why}")
    return out


class FileSystems:
    """Asks file systems what several watches want to know of them, from any thread: each question has a process of its
    own. Who asks while the same question is under way gets its answer; one that hangs holds up no other."""

    def __init__(self) -> None:
        self.keeps = False
        """As `Asker.keeps`, of all questions."""
        self._lock = threading.Lock()
        self._askers: dict[tuple[str, str], Asker] = {}
        self._under_way: dict[tuple[str, str], _UnderWay] = {}

    def ask(self, question: str, path: str, limit_s: float = PROBE_S) -> list[list[float]]:
        """As `Asker.ask`; the limit is that of who asked first."""
        asked, awaited = (question, path), _UnderWay()
        with self._lock:
            others = self._under_way.get(asked)
            if others is None:
                self._under_way[asked] = awaited
            asker = self._askers.setdefault(asked, Asker())
            asker.keeps = self.keeps
        if others is not None:
            return others.wait()
        try:
            awaited.answer = asker.ask(question, path, limit_s)
        except NoReading as error:
            awaited.error = error
            raise
        finally:
            with self._lock:
                del self._under_way[asked]
            awaited.done.set()
        return awaited.answer

    def close(self) -> None:
        """As `Asker.close`."""
        self.keeps = False
        with self._lock:
            askers = list(self._askers.values())
        for asker in askers:
            asker.close()


class _UnderWay:
    """A question that was asked, and for whose answer others may wait."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.answer: list[list[float]] = []
        self.error: NoReading | None = None

    def wait(self) -> list[list[float]]:
        self.done.wait()
        if self.error is not None:
            raise type(self.error)(str(self.error))
        return self.answer


def signal_process(pid: int, name: str) -> bool:
    """Send a signal if the process handles it: at its default it would end the process. Whether it was sent."""
    signum = signal.Signals[name]
    try:
        caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
        if not int(caught, 16) >> (signum - 1) & 1:
            return False
        os.kill(pid, signum)
    except (OSError, IndexError, ValueError):
        return False  # it has ended, or is another user's
    return True
