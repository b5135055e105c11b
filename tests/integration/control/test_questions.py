"""Questions between nodes, by a real store: who answers, who waits how long, and who of several asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from elastic_agent.control.decisions.questions import Question
from elastic_agent.control.in_agent.exchange import KEEP, Answer, Exchange, NodesUnreachable
from elastic_agent.rendezvous.shared_values import MAX_VALUE_BYTES, SharedValues
from elastic_agent.rendezvous.store import Store
from support.store_stages import BOUND_S, ELECTING, HOSTED, Stage, opened

pytestmark = pytest.mark.usefixtures("stores_in_use")

ROUND = 3
warned: list[str] = []
"""What nodes have said of questions that they do not answer."""


@pytest.fixture(params=[*HOSTED, ELECTING[1]])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A new store of each kind."""
    with opened(request.param) as made:
        yield made


def connect(store: Store) -> SharedValues:
    session = store.session()
    assert isinstance(session, SharedValues)
    return session


def reader(stage: Stage) -> SharedValues:
    """A connection of the test's own."""
    session = stage.session(stage.host)
    assert isinstance(session, SharedValues)
    return session


Reply = Callable[[str, Question], Mapping[str, Any] | None]


@contextmanager
def nodes(stage: Stage, number: int, answer: Reply) -> Iterator[list[Exchange]]:
    """Nodes n0, n1 and so on, which answer so."""
    begun: list[Exchange] = []
    try:
        for node in range(number):
            name = f"n{node}"
            own: Answer = partial(answer, name)
            made = Exchange(partial(connect, stage.guest()), partial(str, name), name, own, warned.append)
            made.begin()
            begun.append(made)
        for each in begun:
            with each._changed:
                assert each._changed.wait_for(lambda each=each: each._follows, BOUND_S)  # type: ignore[misc]
        yield begun
    finally:
        for each in begun:
            each.close()


def named(number: int) -> dict[str, str]:
    return {f"n{node}": f"n{node}" for node in range(number)}


def greet(name: str, question: Question) -> Mapping[str, Any] | None:
    return {"from": name, "body": question.body}


def test_all_nodes_answer_the_one_that_asks_too(stage: Stage) -> None:
    """As soon as the last has."""
    with nodes(stage, 3, greet) as (first, second, _):
        for asking in (first, second, first):
            began = time.monotonic()
            found = asking.ask("stacks", ROUND, {"a": 1}, named(3), 60.0)
            assert found == {name: {"from": name, "body": {"a": 1}} for name in named(3)}
            assert time.monotonic() - began < BOUND_S


def test_a_node_that_does_not_answer_is_waited_for_so_long_and_no_longer(stage: Stage) -> None:
    """It is missing among the answers."""
    with nodes(stage, 3, lambda name, question: None if name == "n1" else greet(name, question)) as (first, *_):
        began = time.monotonic()
        assert set(first.ask("stacks", ROUND, {}, named(3), 1.0)) == {"n0", "n2"}
        assert 0.9 < time.monotonic() - began < BOUND_S


def test_a_question_that_cannot_be_answered_is_warned_of_and_the_next_is_answered(stage: Stage) -> None:
    """The node that asks names the node, which says why on its own console."""

    def answer(name: str, question: Question) -> Mapping[str, Any] | None:
        if question.kind == "failing":
            raise ValueError("no such field")
        return {"text": "x" * (MAX_VALUE_BYTES if question.kind == "large" else 1)}

    warned.clear()
    with nodes(stage, 1, answer) as (first,):
        for kind in ("failing", "large"):
            assert first.ask(kind, ROUND, {}, named(1), 0.5) == {}
        assert first.ask("paces", ROUND, {}, named(1), 60.0) == {"n0": {"text": "x"}}
    failing, large = warned
    assert failing == "cannot answer the question of n0 about failing: ValueError: no such field"
    assert large == (
        f"cannot answer the question of n0 about large: the answer has {MAX_VALUE_BYTES + 11} bytes; "
        f"the limit is {MAX_VALUE_BYTES}"
    )


def test_of_nodes_that_find_the_same_at_once_one_asks(stage: Stage) -> None:
    """All have its conclusion, and each of the others knows whose it is."""
    asked: list[str] = []
    at_once = threading.Barrier(6)

    def count(name: str, question: Question) -> Mapping[str, Any] | None:
        if name == "n0" and question.kind == "stacks":
            asked.append(question.name)
        return greet(name, question)

    def conclude(each: Exchange) -> tuple[Mapping[str, Any], str]:
        at_once.wait(BOUND_S)
        return each.conclude("stacks", ROUND, {}, named(6), 10.0, lambda found: {"nodes": sorted(found)}, 60.0)

    with nodes(stage, 6, count) as begun, ThreadPoolExecutor(6) as pool:
        results = list(pool.map(conclude, begun))
    [asker] = asked
    assert sorted(name for _, name in results) == sorted(["", *[asker] * 5])
    assert all(found["nodes"] == sorted(named(6)) for found, _ in results)


def test_a_conclusion_serves_for_a_while_and_for_its_round_only(stage: Stage) -> None:
    """Limits of nodes differ, so they find one hang within seconds of each other; another round has other processes."""
    with nodes(stage, 2, greet) as (first, second):
        conclude_from: Callable[[object], Mapping[str, Any]] = lambda found: {"made": 1}  # noqa: E731
        assert first.conclude("stacks", ROUND, {}, named(2), 10.0, conclude_from, 60.0)[1] == ""
        assert second.conclude("stacks", ROUND, {}, named(2), 10.0, conclude_from, 60.0)[1] == "n0"
        assert second.conclude("stacks", ROUND + 1, {}, named(2), 10.0, conclude_from, 60.0)[1] == ""
        assert first.conclude("stacks", ROUND + 1, {}, named(2), 10.0, conclude_from, 0.0)[1] == ""


def test_a_node_that_concludes_nothing_leaves_it_to_the_next(stage: Stage) -> None:
    """It does not make the others wait either."""

    def fail(found: object) -> Mapping[str, Any]:
        raise OSError("no space left")

    with nodes(stage, 2, greet) as (first, second):
        with pytest.raises(OSError, match="no space left"):
            first.conclude("stacks", ROUND, {}, named(2), 10.0, fail, 60.0)
        began = time.monotonic()
        assert second.conclude("stacks", ROUND, {}, named(2), 10.0, lambda found: {"made": 1}, 60.0)[1] == ""
        assert time.monotonic() - began < BOUND_S


def test_what_is_published_in_a_round_is_published_once(stage: Stage) -> None:
    """However many nodes want to; each sees it."""
    seen: list[tuple[str, object]] = []
    all_saw = threading.Event()

    def note(name: str, question: Question) -> None:
        seen.append((name, question.body["by"]))
        if len(seen) == 4:
            all_saw.set()

    with nodes(stage, 4, note) as begun, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: each.publish_once("end", ROUND, {"by": id(each)}), begun))
        assert all_saw.wait(BOUND_S)
    assert len({by for _, by in seen}) == 1
    assert sorted(name for name, _ in seen) == sorted(named(4))


def test_nothing_but_the_last_questions_stays_in_the_store(stage: Stage) -> None:
    """Answers are deleted with the question that they are for, and old questions too."""
    with nodes(stage, 2, greet) as (first, _):
        for _ in range(KEEP + 4):
            assert len(first.ask("paces", ROUND, {}, named(2), 60.0)) == 2
    numbers = range(1, KEEP + 5)
    store = reader(stage)
    kept = store.wait_values([f"question/{number}" for number in numbers], 0.0)
    assert len(kept) == KEEP
    for number in numbers:
        assert store.wait_values([f"answer/{number}/{name}" for name in named(2)], 0.0) == {}


def test_an_answer_that_came_too_late_is_deleted_later(stage: Stage) -> None:
    """By the node that wrote it."""
    late = threading.Event()

    def answer(name: str, question: Question) -> Mapping[str, Any] | None:
        if name == "n1" and question.kind == "late":
            late.wait(BOUND_S)
        return {"from": name}

    store = reader(stage)
    with nodes(stage, 2, answer) as (first, _):
        assert set(first.ask("late", ROUND, {}, named(2), 0.5)) == {"n0"}
        late.set()
        assert store.wait_values(["answer/1/n1"], BOUND_S)
        for _ in range(KEEP + 1):
            first.ask("paces", ROUND, {}, named(2), 60.0)
        assert store.wait_values(["answer/1/n1"], 0.0) == {}


def test_a_node_whose_connection_breaks_follows_the_questions_on_another(stage: Stage) -> None:
    """Those that came meanwhile, too."""
    with nodes(stage, 2, greet) as (first, second):
        assert len(first.ask("paces", ROUND, {}, named(2), 60.0)) == 2
        listening = second._listening
        assert listening is not None
        listening.close()
        assert len(first.ask("paces", ROUND, {}, named(2), 60.0)) == 2


def test_bytes_that_are_no_question_are_passed_over(stage: Stage) -> None:
    """Whoever wrote them."""
    with nodes(stage, 2, greet) as (first, _):
        assert len(first.ask("paces", ROUND, {}, named(2), 60.0)) == 2
        store = reader(stage)
        for number, value in ((2, b"\xff"), (3, b"[]"), (4, b'{"kind": 1}'), (5, b"9" * 5000)):
            store.write_value(f"question/{number}", value)
        assert len(first.ask("paces", ROUND, {}, named(2), 60.0)) == 2


def test_without_a_store_other_nodes_cannot_be_asked() -> None:
    """It is said at once."""
    made = Exchange(lambda: None, lambda: "n0", "n0", partial(greet, "n0"), warned.append)
    with pytest.raises(NodesUnreachable, match="no store"):
        made.ask("paces", ROUND, {}, named(2), 60.0)
