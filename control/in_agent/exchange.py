"""Questions that the nodes of a job put to each other, through values in its store (ADR 0034).

    question/<n>          the n-th question of the job, as `wire.py` writes it; the last KEEP stay
    question/newest       n of one of the newest
    answer/<n>/<node>     a node's answer: JSON; the node that asked deletes it

A thread waits for the next question; what takes time, an answer or a wait for answers, has a session and a thread of
its own.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ...rendezvous.shared_values import MAX_VALUE_BYTES, SharedValues
from ...rendezvous.store import StoreError
from ..decisions import questions
from ..decisions.questions import CONCLUSION, Question, Seen
from . import wire

KEEP = 16
"""Questions, and a node's own answers, that stay in the store: who waits for a question may be late."""
WAIT_S = 60.0
"""How long one wait for the next question lasts; then it is looked whether some were missed."""
RETRY_FIRST_S, RETRY_MOST_S = 1.0, 30.0
"""Pause before the store is tried again; doubles from the first to the most."""
TRIES = 8
"""How often a number is asked for; each time, another node was quicker."""
CLOSE_S = 1.0
"""How long the end of the thread is waited for: it may be connecting."""
SEEN_S = 5.0
"""How long a question that another node has written may take until it is seen here."""
NEWEST = "question/newest"

Values = Callable[[], SharedValues | None]
Warn = Callable[[str], None]
Answer = Callable[[Question], Mapping[str, Any] | None]
"""Answers a question; None: nothing is to be answered. Called on a thread of its own."""


class NodesUnreachable(Exception):
    """Other nodes cannot be asked: there is no store, it does not answer, or a number is not to be had. One line."""


class NoStore(NodesUnreachable):
    """The job has no store, and will have none."""


class Exchange:
    """This node's part in the questions of its job. Methods may be called from any thread."""

    def __init__(
        self, values: Values, identity: Callable[[], str], name: str, answer: Answer, warn: Callable[[str], None]
    ) -> None:
        """`values`: a new connection, None where there is no store; `identity`: of this node, by which others name its
        answers; `warn` gets a line where it does not answer."""
        self._values = values
        self._identity = identity
        self._name = name
        self._answer = answer
        self._warn = warn
        self._asked = itertools.count(1)
        self._changed = threading.Condition()
        self._newest = 0
        """Number of the newest question seen."""
        self._follows = False
        """`_newest` is known: all later questions are seen here."""
        self._seen: dict[str, Seen] = {}
        """The newest question of each kind."""
        self._answered: list[int] = []
        self._closing = threading.Event()
        self._listening: SharedValues | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Listen from now on. Raises RuntimeError where the host refuses a thread."""
        thread = threading.Thread(target=self._listen, name="elastic-agent-questions", daemon=True)
        thread.start()
        self._thread = thread

    def close(self) -> None:
        """End the thread. Waits for answers end in their time."""
        self._closing.set()
        if self._listening is not None:
            self._listening.close()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    # -- asking --------------------------------------------------------------------------------------------------------

    def ask(
        self, kind: str, round_number: int, body: Mapping[str, Any], nodes: Mapping[str, str], wait_s: float
    ) -> dict[str, dict[str, Any]]:
        """The answers by the nodes' names; `nodes`: names by identity. Who does not answer in time is missing. Raises
        NodesUnreachable."""
        with self._session() as session:
            number = self._put(session, self._question(kind, round_number, body))
            return self._gather(session, number, nodes, wait_s)

    def conclude(
        self,
        kind: str,
        round_number: int,
        body: Mapping[str, Any],
        nodes: Mapping[str, str],
        wait_s: float,
        conclude_from: Callable[[dict[str, dict[str, Any]]], Mapping[str, Any]],
        again_s: float,
    ) -> tuple[Mapping[str, Any], str]:
        """What `conclude_from` makes of the answers, and an empty name. Where another node asks the same in this
        round just now, or has in the last `again_s`, its conclusion, and its name. Raises NodesUnreachable."""
        question, number = self._question(kind, round_number, body), 0
        with self._session() as session:
            while not number:
                if (found := self._of_another(kind, round_number, 2 * wait_s, again_s)) is not None:
                    return found.question.body, found.question.name
                number = self._put_first(session, question)
            answers = self._gather(session, number, nodes, wait_s)
        made: Mapping[str, Any] = {}
        try:
            made = conclude_from(answers)
        finally:  # others wait for it
            with suppress(NodesUnreachable), self._session() as session:
                self._put(session, self._question(kind + CONCLUSION, round_number, {**made, "of": number}))
        return made, ""

    def publish_once(self, kind: str, round_number: int, body: Mapping[str, Any]) -> None:
        """Let all nodes know this, unless a node has published something of this kind in this round. Raises
        NodesUnreachable."""
        with self._session() as session:
            while not self._has_seen(kind, round_number):
                if self._put_first(session, self._question(kind, round_number, body)):
                    return

    def _question(self, kind: str, round_number: int, body: Mapping[str, Any]) -> Question:
        return Question(kind, round_number, f"{self._identity()}-{next(self._asked)}", self._name, body)

    def _of_another(self, kind: str, round_number: int, most_s: float, again_s: float) -> Seen | None:
        """A conclusion that serves for ours. Waits for one that a node is about to draw."""
        with self._changed:
            asked = questions.under_way(self._seen, kind, round_number, time.monotonic(), most_s)
            if asked is not None:
                self._changed.wait_for(lambda: self._is_concluded(asked), most_s)
            found = questions.recent(self._seen, kind, round_number, time.monotonic(), again_s)
        # One without content is of a node that could not conclude anything.
        return found if found is not None and len(found.question.body) > 1 else None

    def _is_concluded(self, asked: Seen) -> bool:
        return questions.concluded(self._seen, asked) is not None or self._closing.is_set()

    def _has_seen(self, kind: str, round_number: int) -> bool:
        with self._changed:
            found = self._seen.get(kind)
            return found is not None and found.question.round == round_number

    def _put(self, session: SharedValues, question: Question) -> int:
        for _ in range(TRIES):
            if number := self._put_first(session, question):
                return number
        raise NodesUnreachable(f"another node took each of {TRIES} question numbers")

    def _put_first(self, session: SharedValues, question: Question) -> int:
        """Write it as the next question; its number, or 0 if another node was first, whose question is seen then."""
        value = wire.encode(question)
        with self._changed:
            # Not read here: a question that has just been asked would be skipped, and not seen.
            if not self._changed.wait_for(lambda: self._follows or self._closing.is_set(), SEEN_S):
                raise NodesUnreachable(f"this node has not read the newest question number within {SEEN_S:g} s")
            number = self._newest + 1
        if len(value) > MAX_VALUE_BYTES:
            raise NodesUnreachable(f"a question of {len(value)} bytes is longer than {MAX_VALUE_BYTES}")
        if session.write_value(f"question/{number}", value):
            session.write_value(NEWEST, b"%d" % number, over=True)
            session.delete_values([f"question/{number - KEEP}"])
            self._came(number, value)
            return number
        with self._changed:
            if not self._changed.wait_for(lambda: self._newest >= number or self._closing.is_set(), SEEN_S):
                raise NodesUnreachable(f"question {number} of another node was not received within {SEEN_S:g} s")
            if self._closing.is_set():
                raise NodesUnreachable("the agent ends")
        return 0

    def _gather(
        self, session: SharedValues, number: int, nodes: Mapping[str, str], wait_s: float
    ) -> dict[str, dict[str, Any]]:
        names = {f"answer/{number}/{identity}": name for identity, name in nodes.items()}
        if not names:
            return {}
        found = session.wait_values(list(names), wait_s)
        session.delete_values(list(names))
        decoded = {names[key]: wire.decode_answer(value) for key, value in found.items()}
        return {name: answer for name, answer in decoded.items() if answer is not None}

    # -- answering -----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        pause_s = RETRY_FIRST_S
        while not self._closing.is_set():
            try:
                with self._session() as session:
                    self._listening = session
                    self._listen_on(session)
                pause_s = RETRY_FIRST_S
            except NoStore:
                return
            except NodesUnreachable:
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, RETRY_MOST_S)
            finally:
                self._listening = None

    def _listen_on(self, session: SharedValues) -> None:
        if not self._follows:
            self._skip_to(_number(session))
        while not self._closing.is_set():
            following = self._newest + 1
            name = f"question/{following}"
            value = session.wait_values([name], WAIT_S).get(name)
            if value is not None:
                self._came(following, value)
            elif (newest := _number(session)) > following:
                self._skip_to(newest - 1)

    def _skip_to(self, number: int) -> None:
        with self._changed:
            self._newest, self._follows = max(self._newest, number), True
            self._changed.notify_all()

    def _came(self, number: int, value: bytes) -> None:
        """Take in one question; a repetition of the same number is ignored."""
        question = wire.decode(value)
        with self._changed:
            if number <= self._newest:
                return
            self._newest = number
            if question is not None:
                self._seen[question.kind] = Seen(number, question, time.monotonic())
            self._changed.notify_all()
        if question is None or self._closing.is_set():
            return
        try:
            threading.Thread(
                target=self._reply, args=(number, question), name="elastic-agent-answer", daemon=True
            ).start()
        except RuntimeError as error:
            self._warn(f"{_cannot_answer(question)}: this host refuses a thread ({error}); raise ulimit -u")

    def _reply(self, number: int, question: Question) -> None:
        try:
            answer = self._answer(question)
        except Exception as error:  # noqa: BLE001 - a file of /proc in another form, say; the next question is another
            self._warn(f"{_cannot_answer(question)}: {type(error).__name__}: {error}")
            return
        if answer is None:
            return
        value = json.dumps(answer, separators=(",", ":")).encode()
        if len(value) > MAX_VALUE_BYTES:
            size = f"the answer has {len(value)} bytes; the limit is {MAX_VALUE_BYTES}"
            self._warn(f"{_cannot_answer(question)}: {size}")
            return
        with self._changed:
            self._answered.append(number)
            old = [each for each in self._answered if each <= number - KEEP]
            self._answered = [each for each in self._answered if each > number - KEEP]
        try:
            with self._session() as session:
                session.write_value(f"answer/{number}/{self._identity()}", value, over=True)
                for each in old:
                    session.delete_values([f"answer/{each}/{self._identity()}"])
        except NodesUnreachable:
            return  # the store is away: the node that asks will not wait for ever

    @contextmanager
    def _session(self) -> Iterator[SharedValues]:
        """A connection of its own. Raises NodesUnreachable for what the store raises."""
        session = None
        try:
            session = self._values()
            if session is None:
                raise NoStore("this node has no store by which to ask others")
            yield session
        except (StoreError, OSError) as error:
            raise NodesUnreachable(f"cannot ask other nodes: {error}") from None
        finally:
            if session is not None:
                session.close()


def _cannot_answer(question: Question) -> str:
    return f"cannot answer the question of {question.name} about {question.kind}"


def _number(session: SharedValues) -> int:
    value = session.wait_values([NEWEST], 0.0).get(NEWEST, b"")
    return int(value) if value.isdigit() and len(value) <= 16 else 0
