"""What a checkpoint keeps of the program's calls: which are done, what they gave, and how far the present one is."""

from __future__ import annotations

import json
from typing import Any

from ...rendezvous.text import count
from .. import made_with
from ..errors import Diverged


class Record:
    """A state of the run. The same on all workers, but for the meters of the pass that is going on."""

    def __init__(
        self, made: dict[str, str] | None = None, checkpoint_dir: str | None = None, lasts: bool = True
    ) -> None:
        """made: what the trainer was made with, as `made_with.kept_of` gives it. checkpoint_dir: where the program
        keeps states. lasts: whether a program that comes later, or another one, asks for what calls gave."""
        self._made, self._directory, self._lasts = made or {}, checkpoint_dir, lasts
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
        self._add([number, name, digest, value])
        self.done, self.going = number, None
        return value

    def finish_by_program(self, number: int, name: str, digest: str) -> None:
        """This call is done; the program says with the next one what it gave."""
        self._pending = [number, name, digest]
        self.done, self.going = number, None

    def settle(self, value: Any) -> None:
        """What the call before this one gave."""
        if self._pending is not None:
            self._add([*self._pending, value])
            self._pending = None

    def _add(self, call: list[Any]) -> None:
        """The only program has what the calls before gave, as it has made this one: nobody else asks for it."""
        if not self._lasts:
            self._lines, self._done = [], []
        self._done.append(call)

    def state_dict(self) -> dict[str, Any]:
        state = {"done": self.done, "going": json.dumps(self.going), "results": "\n".join(self._written())}
        return {**state, "made": json.dumps(self._made)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises Diverged where calls of this state were begun by a trainer that was made with something else."""
        self.done, self.going = int(state["done"]), json.loads(state["going"])
        if (self.done or self.going is not None) and "made" in state:  # states of former versions do not say it
            self._check_made(json.loads(state["made"]))
        self._done = []
        self._lines = state["results"].split("\n") if state["results"] else []

    def _check_made(self, before: dict[str, str]) -> None:
        if (found := made_with.differences(self._made, before)) is not None:
            raise Diverged(
                f"the trainer is made with {found[0]}, and the training in {self._directory or 'its state'}, of which "
                f"{count(self.done, 'call')} {'is' if self.done == 1 else 'are'} done, with {found[1]}: make it as "
                "before, or begin anew in another checkpoint_dir, where load() goes on from a file of save()"
            )

    def _written(self) -> list[str]:
        """A line for each call that is done."""
        self._lines += map(json.dumps, self._done)
        self._done = []
        return self._lines
