"""What a checkpoint keeps of the program's calls: which are done, what they gave, and how far the present one is."""

from __future__ import annotations

import json
from typing import Any


class Record:
    """A state of the run. The same on all workers, but for the meters of the pass that is going on."""

    def __init__(self) -> None:
        self.done = 0
        """Number of the last call that is done."""
        self.going: dict[str, Any] | None = None
        """Of a pass that is going on: the call's number, the loader's epoch, and its meters, over all workers."""
        self.known: dict[int, list[Any]] = {}
        """By number, of calls that were answered before, but are later than this state: name, digest, value."""
        self._lines: list[str] = []
        self._done: list[list[Any]] = []
        """Calls that are done, and not among the lines yet: nobody waits for those to be written."""
        self._pending: list[Any] | None = None
        """Of the last call: number, name and digest, while the program alone knows what it gave."""

    def results(self) -> list[Any]:
        """Number, name, digest and value of each call that is done, and of those that are known."""
        return [*map(json.loads, self._written()), *([number, *call] for number, call in sorted(self.known.items()))]

    def finish(self, number: int, name: str, digest: str, value: Any) -> Any:
        """This call is done. Gives its value: that of the first time, if it was answered before."""
        if number in self.known:
            value = self.known.pop(number)[2]
        self._done.append([number, name, digest, value])
        self.done, self.going = number, None
        return value

    def finish_by_program(self, number: int, name: str, digest: str) -> None:
        """This call is done; the program says with the next one what it gave."""
        self._pending = [number, name, digest]
        self.done, self.going = number, None

    def settle(self, value: Any) -> None:
        """What the call before this one gave."""
        if self._pending is not None:
            self._done.append([*self._pending, value])
            self._pending = None

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "going": json.dumps(self.going), "results": "\n".join(self._written())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done, self.going = int(state["done"]), json.loads(state["going"])
        self._done = []
        self._lines = state["results"].split("\n") if state["results"] else []

    def _written(self) -> list[str]:
        """A line for each call that is done."""
        self._lines += map(json.dumps, self._done)
        self._done = []
        return self._lines
