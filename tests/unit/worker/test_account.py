"""Where a worker's time goes, as its agent reads it."""

from __future__ import annotations

import pytest

from elastic_agent.proto import steps
from elastic_agent.worker.loop import account
from elastic_agent.worker.loop.account import Account

SECOND_NS = 1_000_000_000


class Clock:
    """Stands for the module `time` in the account."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = SECOND_NS
        monkeypatch.setattr(account, "time", self)

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wait(self, seconds: int) -> None:
        self.now_ns += seconds * SECOND_NS


def test_the_size_of_a_checkpoint_reaches_the_agent_once_it_is_on_the_disk() -> None:
    """It is told, as the thread that writes is done after the training has gone on."""
    told: list[int] = []
    slot = memoryview(bytearray(steps.SLOT_BYTES)).cast("Q")
    seen = Account(slot, 0, 0, lambda: told.append(slot[steps.WRITTEN_BYTES]))
    seen.begin_save()
    seen.took(3)
    seen.end_save()
    assert told == [0]
    seen.wrote(1 << 40)
    assert told == [0, 1 << 40]


def test_a_checkpoint_between_two_calls_of_a_program_leaves_the_worker_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its wait for the program, before and after, is no step."""
    clock, slot = Clock(monkeypatch), memoryview(bytearray(steps.SLOT_BYTES)).cast("Q")
    seen = Account(slot, 0, 0, lambda: None)
    clock.wait(1)
    seen.step()
    seen.attend(False)
    clock.wait(2)
    seen.begin_save()
    clock.wait(4)
    seen.end_save()
    clock.wait(8)
    seen.attend(True)
    clock.wait(16)
    seen.step()
    words = (steps.USEFUL_NS, steps.PAUSED_NS, steps.SAVING_NS)
    assert [slot[word] // SECOND_NS for word in words] == [1 + 16, 2 + 8, 4]
