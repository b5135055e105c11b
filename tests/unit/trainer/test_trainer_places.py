"""The checkpoints of a trainer's workers: `in_worker/places.py`."""

from __future__ import annotations

from pathlib import Path

from elastic_agent.trainer.in_worker.places import Places
from elastic_agent.worker import Every


class Counter:
    """An object with a state."""

    value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def test_each_call_that_is_kept_before_it_is_answered_is_kept_as_it_is(tmp_path: Path) -> None:
    """Two calls that train nothing, one after the other, are at the same place, and leave different states."""

    def start(counter: Counter) -> Places:
        return Places(str(tmp_path), 0, Every(seconds=None), lambda: None, {"counter": counter})

    counter, resumed = Counter(), Counter()
    places = start(counter)
    for counter.value in (1, 2, 3):
        places.save_now()
    start(resumed)
    assert resumed.value == 3
