"""Who is handed which call, and who is hung up on: both ends of the socket of a program and its workers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_agent.trainer import frames
from elastic_agent.trainer.errors import Diverged
from elastic_agent.trainer.in_worker import channel as channels
from elastic_agent.trainer.in_worker.channel import Channel
from elastic_agent.trainer.program.call_server import CallServer

BOUND_S = 10.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CallServer]:
    made = CallServer(str(tmp_path))
    yield made
    made.close()


@pytest.fixture
def connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Channel]]:
    made: list[Channel] = []

    def worker(local_rank: int, round: int = 1) -> Channel:  # noqa: A002 - the word of the agent
        monkeypatch.setenv("ELASTIC_AGENT_ROUND", str(round))
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        made.append(Channel(str(tmp_path)))
        made[-1].greet(local_rank, 2, 0)
        made[-1].ready([])
        return made[-1]

    yield worker
    for each in made:
        each.close()


class Waiting(threading.Thread):
    """A worker that waits for a call."""

    def __init__(self, channel: Channel, number: int) -> None:
        super().__init__(daemon=True)
        self._channel, self._number = channel, number
        self._waits = threading.Event()
        self._got: dict[str, Any] | None = None
        self.start()
        assert self._waits.wait(BOUND_S)

    def run(self) -> None:
        try:
            self._got = self._channel.next(self._number, self._waits.set)
        except (EOFError, OSError):
            self._got = None

    def got(self) -> str | None:
        """The name of the call; None: its program hung up."""
        self.join(BOUND_S)
        assert not self.is_alive()
        return None if self._got is None else self._got["name"]


def test_each_waiting_worker_gets_the_call(server: CallServer, connect: Callable[..., Channel]) -> None:
    workers = [Waiting(connect(rank), 1) for rank in range(2)]
    server.make("train", {}, "one")
    assert [each.got() for each in workers] == ["train", "train"]


def test_a_worker_whose_round_is_over_is_hung_up_on(server: CallServer, connect: Callable[..., Channel]) -> None:
    """It gets no call: its place is taken by a worker that goes on from a state."""
    late = Waiting(connect(0), 1)
    successor = Waiting(connect(0, round=2), 1)
    assert late.got() is None
    server.make("train", {}, "one")
    assert successor.got() == "train"


def test_a_progress_that_cannot_be_shown_costs_no_worker(
    server: CallServer, connect: Callable[..., Channel], caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection was closed, as if it had ended, so that it did: where a terminal was gone, in each start anew."""

    def draw(progress: dict[str, Any]) -> None:
        raise ValueError("I/O operation on closed file")

    server.on_progress = draw
    channel = connect(0)
    for batch in range(2):
        channel.progress({"batch": batch}, always=True)
    worker = Waiting(channel, 1)
    server.make("train", {}, "one")
    assert worker.got() == "train"
    assert caplog.text.count("no progress is shown any more: ValueError: I/O operation on closed file") == 1


def test_a_programs_default_timeout_of_sockets_is_for_its_own(
    tmp_path: Path, connect: Callable[..., Channel], request: pytest.FixtureRequest
) -> None:
    """With `socket.setdefaulttimeout(10)`, as for downloads, a program that called nothing for 10 s lost its workers,
    and waited for those of the next round for ever."""
    request.addfinalizer(lambda: socket.setdefaulttimeout(None))
    socket.setdefaulttimeout(5.0)
    server = CallServer(str(tmp_path))
    try:
        channel = connect(0)
        ends = [server._server, *server._connections, channel._connection]
        assert [each.gettimeout() for each in ends] == [None] * 3
    finally:
        server.close()


def part_of(value: float, samples: float) -> bytes:
    """What a worker tells of a pass."""
    meters = {"sums": {"loss": [value * samples, samples]}, "last": {}, "samples": samples, "batches": 3}
    return json.dumps({"meters": meters, "returned": {}, "common": {"epoch": 1, "batch_count": 3}}).encode()


def test_a_pass_gives_means_over_the_parts_of_all_workers_which_learn_it_with_the_next_call(
    server: CallServer, connect: Callable[..., Channel]
) -> None:
    workers = [connect(rank) for rank in range(2)]
    server.make("train", {}, "one")
    for each in workers:
        assert each.next(1, lambda: None)["before"] is None
    workers[1].part(1, part_of(1.0, 30.0))
    workers[0].part(1, part_of(2.0, 10.0))
    expected = {"num_samples": 40, "epoch": 1, "batch_count": 3, "loss": 1.25}
    assert server.wait(1).value == expected
    server.make("shutdown", {}, "two")
    assert [each.next(2, lambda: None)["before"] for each in workers] == [expected] * 2


def test_a_part_of_a_pass_asks_for_the_next_call_in_the_same_message(
    server: CallServer, connect: Callable[..., Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program's thread that reads it is woken once, not twice."""
    workers = [connect(rank) for rank in range(2)]
    sent: list[list[str]] = []

    def counted(connection: Any, header: dict[str, Any], body: bytes = b"") -> None:
        sent.append(list(header))
        frames.send(connection, header, body)

    monkeypatch.setattr(channels, "send", counted)
    for number in (1, 2):
        server.make("train", {}, "one")
        for each in workers:
            each.next(number, lambda: None)
        for each in workers:
            each.part(number, part_of(1.0, 10.0))
        assert server.wait(number).value["loss"] == 1.0
    assert sent == [["next"]] * 2 + [["part", "next"]] * 4


def test_messages_arrive_whole_however_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "READ_BYTES", 16)
    messages: list[tuple[dict[str, Any], bytes]] = [({"a": 1}, b""), ({"b": "x" * 40}, b"y" * 100), ({}, b"z")]
    data = b"".join(frames.packed(*each) for each in messages)
    for step in (1, 7, len(data)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            inbox = frames.Inbox(ours)

            def push(step: int = step, theirs: socket.socket = theirs) -> None:
                for begin in range(0, len(data), step):
                    theirs.sendall(data[begin : begin + step])
                theirs.sendall(data[:-1])
                theirs.close()

            pushing = threading.Thread(target=push)
            pushing.start()
            assert [inbox.receive() for _ in range(5)] == messages + messages[:2]
            with pytest.raises(EOFError):
                inbox.receive()
            pushing.join(BOUND_S)


def test_no_call_is_handed_out_before_it_is_known_what_the_one_before_gave(
    server: CallServer, connect: Callable[..., Channel]
) -> None:
    """A program that was interrupted in a pass may make another call before all workers have ended that."""
    workers = [connect(rank) for rank in range(2)]
    server.make("train", {}, "one")
    for each in workers:
        each.next(1, lambda: None)
    server.make("validate", {}, "two")
    workers[0].part(1, part_of(1.0, 10.0))
    early = Waiting(workers[0], 2)
    workers[1].part(1, part_of(1.0, 10.0))
    late = workers[1].next(2, lambda: None)
    assert early.got() == "validate"
    assert late["before"]["loss"] == 1.0


def test_what_a_pass_gave_the_first_time_stands(server: CallServer, connect: Callable[..., Channel]) -> None:
    """A pass that is done again, as its workers' state is older, gives nothing, and holds up no call; also where only
    one of the workers knew that it was answered."""
    worker = connect(0)
    worker.ready([[1, "train", "one", {"loss": 7.0}]])
    server.make("train", {}, "one")
    server.make("validate", {}, "two")
    worker.part(1, part_of(1.0, 10.0))
    call = worker.next(2, lambda: None)
    assert (call["name"], call["before"]) == ("validate", {"loss": 7.0})
    assert server.wait(1).value == {"loss": 7.0}


def test_another_call_than_the_one_that_was_done_first_is_refused(
    server: CallServer, connect: Callable[..., Channel]
) -> None:
    """A program that was changed, and is started again on the checkpoints of the one before."""
    connect(0).ready([[1, "train", "one", {"loss": 7.0}]])
    assert server.wait(1).recorded
    with pytest.raises(
        Diverged, match=r"call 1 of this program is train\(\) with .*, and was train\(\) with other arg"
    ):
        server.make("train", {"num_steps": 3}, "two")
    with pytest.raises(Diverged, match=r"call 1 of this program is validate\(\) .* \(one, not one\) when it was done"):
        server.make("validate", {}, "one")
    assert server.make("train", {}, "one") == 1


def test_parts_of_a_round_that_is_over_do_not_count(server: CallServer, connect: Callable[..., Channel]) -> None:
    server.make("train", {}, "one")
    former = [connect(rank) for rank in range(2)]
    former[0].part(1, part_of(100.0, 10.0))
    workers = [connect(rank, round=2) for rank in range(2)]
    former[1].part(1, part_of(100.0, 10.0))
    for each in workers:
        each.part(1, part_of(1.0, 10.0))
    assert server.wait(1).value["loss"] == 1.0


def test_the_end_of_the_job_ends_the_wait_but_not_for_a_call_that_was_made(
    server: CallServer, connect: Callable[..., Channel]
) -> None:
    server.make("train", {}, "one")
    server.end(lambda: RuntimeError("over"))
    behind, due = connect(0), connect(1)
    assert due.next(1, lambda: None)["name"] == "train"
    with pytest.raises((EOFError, OSError)):
        behind.next(2, lambda: None)


def test_what_is_read_is_asked_of_the_first_worker_once(server: CallServer, connect: Callable[..., Channel]) -> None:
    """It asks for the next call at once, possibly before the program's thread has seen the answer."""
    first = connect(0)
    waiting, other = Waiting(first, 1), Waiting(connect(1), 1)
    found: list[Any] = []
    reading = threading.Thread(target=lambda: found.append(server.read("model").value))
    reading.start()
    assert waiting.got() == "model"
    first.answer(-1, "the model")
    again = Waiting(first, 1)
    reading.join(BOUND_S)
    server.make("train", {}, "one")
    assert (found, again.got(), other.got()) == (["the model"], "train", "train")


def test_a_program_keeps_no_state_that_it_has_read(server: CallServer, connect: Callable[..., Channel]) -> None:
    """Each is as large as the model and its optimizer, and a program that saves reads one each epoch."""
    first = connect(0)
    for number in (-1, -2, -3):
        reading = threading.Thread(target=server.read, args=("state_dict",))
        reading.start()
        assert first.next(1, lambda: None)["name"] == "state_dict"
        first.answer(number, None, b"all of the state")
        reading.join(BOUND_S)
        assert not reading.is_alive()
    assert server.make("state_dict", {}, "one") == 1
    assert first.next(1, lambda: None)["name"] == "state_dict"
    first.answer(1, None, b"a part of the state")
    assert server.wait(1).body == b"a part of the state"
    assert [answer.body for answer in server._answers.values()] == [b""]


def test_a_worker_waits_for_its_program_only_where_no_call_comes_at_once(
    server: CallServer, connect: Callable[..., Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that trains in a loop never lets its workers' agent know that they wait."""
    monkeypatch.setattr(channels, "AT_ONCE_S", BOUND_S)
    waits: list[int] = []
    worker = connect(0)
    server.make("train", {}, "one")
    assert worker.next(1, lambda: waits.append(1))["number"] == 1
    monkeypatch.setattr(channels, "AT_ONCE_S", 0.0)

    def makes() -> None:
        waits.append(2)
        server.make("validate", {}, "two")

    assert worker.next(2, makes)["name"] == "validate"
    assert waits == [2]
