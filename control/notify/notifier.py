"""Sends messages: a thread for each channel, so that one that hangs delays neither the watches nor the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from ...rendezvous.text import count, duration
from ..decisions.outbox import Digest, Outbox, SendPace
from .channels import Channel, Message, NotDelivered

TITLE_MAX = 120
"""Characters of a subject."""


class Notifier:
    """Takes events at any time and from any thread; sends them at the pace of each channel, until closed."""

    def __init__(
        self, channels: Iterable[Channel], pace: SendPace, job: str, node: str, log: Callable[[str], None]
    ) -> None:
        self._lines: list[_Line] = []
        for channel in channels:
            same = sum(line.channel.name == channel.name for line in self._lines)
            name = f"{channel.name} ({same + 1})" if same else channel.name
            self._lines.append(_Line(name, channel, Outbox(pace), job, node, log))

    def tell(self, key: str, text: str) -> None:
        """An event, for all channels. Returns at once. Events of one key are one line of a message, with a count."""
        for line in self._lines:
            line.tell(key, text)

    def tell_one(self, channel: str, key: str, text: str, number: int) -> None:
        """Events that an earlier process has not delivered to a channel; forgotten if the channel is no more."""
        for line in self._lines:
            if line.name == channel:
                line.tell(key, text, number)

    def close(self, limit_s: float) -> dict[str, list[tuple[str, str, int]]]:
        """Send what waits, at once, for at most `limit_s`. Returns what did not arrive: (key, text, count) by channel.

        Threads whose server hangs are left to the end of the process; a command is killed.
        """
        deadline = time.monotonic() + limit_s
        for line in self._lines:
            line.finish(deadline)
        return {line.name: left for line in self._lines if (left := line.join(deadline))}


class _Line:
    """One channel, its outbox and its thread."""

    def __init__(
        self, name: str, channel: Channel, outbox: Outbox, job: str, node: str, log: Callable[[str], None]
    ) -> None:
        self.name, self.channel = name, channel
        self._outbox, self._job, self._node, self._log = outbox, job, node, log
        self._changed = threading.Condition()
        self._finish_by: float | None = None
        self._failing = self._over = False
        self._thread: threading.Thread | None = None

    def tell(self, key: str, text: str, number: int = 1) -> None:
        with self._changed:
            self._outbox.add(key, text, time.monotonic(), number)
            if self._thread is None:
                # A daemon: a server that hangs must not keep the program from ending.
                thread = threading.Thread(target=self._run, name="elastic-agent-notify", daemon=True)
                try:
                    thread.start()
                    self._thread = thread
                except RuntimeError as error:  # the host refuses threads; the next event tries again
                    self._log(f"notifications to {self.name} are delayed: {error}; the next event tries again")
            self._changed.notify()

    def finish(self, deadline: float) -> None:
        with self._changed:
            self._finish_by = deadline
            self._outbox.hurry(time.monotonic())
            self._changed.notify()

    def join(self, deadline: float) -> list[tuple[str, str, int]]:
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            left, self._over = self._outbox.backlog(), True
        self.channel.close()
        return left

    def _run(self) -> None:
        while (digest := self._next()) is not None:
            try:
                self.channel.send(message_of(digest, self._job, self._node))
            except NotDelivered as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - a library's surprise must not end the channel
                self._failed(NotDelivered(type(error).__name__))  # its text may hold a secret
            else:
                self._delivered()

    def _next(self) -> Digest | None:
        """Wait for the next message that is due. None: there is nothing more to send."""
        with self._changed:
            while True:
                now, due = time.monotonic(), self._outbox.due_at()
                if self._finish_by is not None and (due is None or max(now, due) >= self._finish_by):
                    return None
                if due is not None and now >= due:
                    return self._outbox.take(now)
                ends = [at for at in (due, self._finish_by) if at is not None]
                self._changed.wait(min(ends) - now if ends else None)

    def _failed(self, error: NotDelivered) -> None:
        with self._changed:
            pause_s = self._outbox.failed(time.monotonic(), error.retry_after_s)
            first, self._failing = not (self._failing or self._over), True
        if first:
            next_try = f"next try in {duration(pause_s)}, then after longer pauses"
            self._log(f"notifications to {self.name} fail: {error}; {next_try}")

    def _delivered(self) -> None:
        with self._changed:
            self._outbox.delivered(time.monotonic())
            again, self._failing = self._failing, False
        if again:
            self._log(f"notifications to {self.name} arrive again")


def message_of(digest: Digest, job: str, node: str) -> Message:
    """The message of a digest: the first cause in the title, all of them in the text, each with how often it came."""
    name = job or "job"
    first = digest.lines[0][0].partition("\n")[0]
    more = digest.total - 1
    title = f"[{name}] {first}" if not more else f"[{name}] {count(digest.total, 'event')}, first: {first}"
    parts = [f"{text} ({number} times)" if number > 1 else text for text, number in digest.lines]
    if digest.unlisted:
        parts.append(f"and {count(digest.unlisted, 'event')} of further causes")
    text = _sendable("\n\n".join([*parts, f"job {name}, node {node}"]))
    title = " ".join(_sendable(title).split())  # a header is one line
    if len(title) > TITLE_MAX:
        title = f"{title[: TITLE_MAX - 3]}..."
    return Message(title, text, job, node, digest.lines, digest.total)


def _sendable(text: str) -> str:
    """Without the bytes of names that are no text, which no mail can carry."""
    return text.encode("utf-8", "replace").decode()
