"""Files by which people ask something of a running job: the kill switch and the save switch.

They are looked at by threads of their own, one for each directory, four times a second, because a file server may never
answer, and tells nobody when another host has made a file (inotify(7): only changes of this host are seen). An agent
without them has no such thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ...rendezvous.agreements import Act
from ..errors import KillSwitch
from ..spec import GuardSpec

LOOK_S = 0.25
"""Between two looks."""
CLOSE_S = 1.0
"""How long the end of the threads is waited for: a look at a dead file server does not return."""
ANSWER_S = 5.0
"""How long a switch's file system has to answer at the start: a job must not wait for one that is dead."""
READ_BYTES = 1024
"""What is read of a switch; only its first line counts."""
UNNAMED = "save-switch"
"""Label of a checkpoint for a save switch without content."""
Answer = TypeVar("Answer")
Ask = Callable[[Act, str, str], None]
"""An act, who asks in one sentence, and a label."""
_Look = tuple[str, str, Callable[[str], None]]
"""What a switch is called, its path, and what looks at it."""


class Switches:
    """Looks at the switches of one agent until `close`."""

    def __init__(self, spec: GuardSpec, identity: str, ask: Ask, warn: Callable[[str], None]) -> None:
        """`identity`: a name for files that no other node has. `ask` and `warn` are called on the threads."""
        self._identity = identity
        self._ask = ask
        self._warn = warn
        self._killed = False
        self._seen: tuple[int, int, int] | None = None
        """The save switch as of the last look: inode, length and time of change."""
        self._left: tuple[int, int, int] | None = None
        """A save switch that cannot be removed."""
        self._told: set[str] = set()
        """What was complained of: it is said once."""
        self._closed = False
        self._ended = threading.Lock()
        """Free once the threads are to end. Waiting for it takes a third less of a processor than for an event."""
        self._ended.acquire()
        looks: dict[str, list[_Look]] = {}
        for name, path, look in (
            ("kill switch", spec.kill_switch, self._look_for_kill),
            ("save switch", spec.save_switch, self._look_for_save),
        ):
            if path:
                looks.setdefault(os.path.dirname(path), []).append((name, path, look))
        self._threads = [
            threading.Thread(target=self._run, args=(several,), name="elastic-agent-switches", daemon=True)
            for several in looks.values()
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads."""
        if not self._closed:
            self._closed = True
            self._ended.release()
        until = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self, looks: list[_Look]) -> None:
        while True:
            for name, path, look in looks:
                try:
                    look(path)
                except OSError as error:
                    self._complain(f"the {name} {path} cannot be looked at: {error.strerror}; looking on")
            if self._ended.acquire(timeout=until_next_look_s(time.monotonic())):
                self._ended.release()  # for the other thread
                return

    def _look_for_kill(self, path: str) -> None:
        if not self._killed and (because := killed_by(path)):
            self._killed = True
            self._ask(Act.KILL, because, "")

    def _look_for_save(self, path: str) -> None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            self._seen = self._left = None
            return
        before, self._seen = self._seen, (found.st_ino, found.st_size, found.st_mtime_ns)
        # Taken once it stays as it is: who writes a label makes the file first.
        if before != self._seen or self._left == self._seen:
            return
        owner = owner_of(found.st_uid)
        label = self._take(path)
        if label is not None:
            self._seen = None
            because = f"the save switch {path}, made by {owner}" + (f": {label}" if label else "")
            self._ask(Act.SAVE, because, label or UNNAMED)

    def _take(self, path: str) -> str | None:
        """The label in the file, which is removed; None where another node was first. Renaming decides which is."""
        folder, name = os.path.split(path)
        taken = os.path.join(folder, f".{name}.{self._identity}")
        try:
            os.rename(path, taken)
        except FileNotFoundError:
            return None
        except OSError as error:
            # It would be taken again and again.
            self._left = self._seen
            self._complain(f"the save switch {path} cannot be removed ({error.strerror}), so each node takes it once")
            return first_line(path)
        label = first_line(taken)
        os.unlink(taken)
        return label

    def _complain(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._warn(text)


def until_next_look_s(now_s: float) -> float:
    """Until the clock shows a multiple of LOOK_S, so that all threads wake together, which takes less of a processor;
    half of LOOK_S at least: two looks that find a file the same are some time apart."""
    left_s = LOOK_S - now_s % LOOK_S
    return left_s if left_s >= LOOK_S / 2 else left_s + LOOK_S


def look_first(path: str, node: str, tell: Callable[[str, bool], None] | None) -> None:
    """Before anything is made or started: the elements of a job array must not leave thousands of log directories.

    Raises KillSwitch. Says so, and goes on, where the switch cannot be looked at, or its file system does not answer in
    ANSWER_S."""
    found = in_time(lambda: _found_or_trouble(path))
    because, trouble = found or ("", f"the file system of the kill switch {path} gave no answer in {ANSWER_S:g} s")
    if because:
        raise KillSwitch(f"{because}; no worker was started", node=node)
    if trouble and tell is not None:
        tell(f"{trouble}; the job starts", False)


def _found_or_trouble(path: str) -> tuple[str, str]:
    """Who made the kill switch, and why it cannot be looked at, of which at most one is not empty."""
    try:
        return killed_by(path), ""
    except OSError as error:
        return "", f"the kill switch {path} cannot be looked at: {error.strerror}"


def in_time(look: Callable[[], Answer], limit_s: float = ANSWER_S) -> Answer | None:
    """What a look at a file gives; None where it takes longer. The thread that looks then waits on, as one that waits
    for a dead file server does until that answers or the process ends."""
    found: list[Answer] = []
    thread = threading.Thread(target=lambda: found.append(look()), name="elastic-agent-look", daemon=True)
    thread.start()
    thread.join(limit_s)
    return found[0] if found else None


def killed_by(path: str) -> str:
    """Who made the kill switch, and why as its first line says, in words; empty where there is none. Raises OSError
    where that cannot be told, such as in a directory that this user may not search: that is no switch."""
    try:
        # Opened, not only looked up: a client of NFS answers that from what it knew before.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except PermissionError:  # it is there, and is not for reading
        return f"the kill switch {path}, made by {owner_of(os.stat(path).st_uid)}"
    try:
        owner = owner_of(os.fstat(descriptor).st_uid)
    finally:
        os.close(descriptor)
    reason = first_line(path)
    return f"the kill switch {path}, made by {owner}" + (f": {reason}" if reason else "")


def owner_of(uid: int) -> str:
    """A user's name, and number where it has none here."""
    from pwd import getpwuid

    try:
        return getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def first_line(path: str) -> str:
    """The first line of a file, what can be printed of it; empty where it cannot be read, or is a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for who writes to it
    except OSError:
        return ""
    try:
        text = os.read(descriptor, READ_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    line = (text.splitlines() or [""])[0]
    return "".join(letter for letter in line if letter.isprintable()).strip()
