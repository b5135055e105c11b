"""The same calls on all nodes: what each node's program asks for is compared before anything is done."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ...worker.world import World
from .. import made_with, plain
from ..errors import Diverged, TooManyRestarts
from .channel import Channel
from .record import Record


class CallAgreement:
    """One for each worker and round. Collective."""

    def __init__(self, channel: Channel, world: World, record: Record, program: dict[str, Any]) -> None:
        self._channel, self._world, self._record, self._program = channel, world, record, program
        self._several = _several_nodes()
        self._restarts = int(os.environ.get("ELASTIC_AGENT_RESTARTS", "0"))

    def greet(self) -> None:
        """Every program gets the calls that are done, of which any program has a record."""
        record, world = self._record, self._world
        known = self._channel.greet(world.rank, world.size, record.done)
        if self._several:
            for calls in world.gather(known):
                for number, *call in calls:
                    record.known.setdefault(number, call)
        else:
            record.known = {number: call for number, *call in known}
        record.known = {number: call for number, call in record.known.items() if number > record.done}
        self._channel.ready(record.results())

    def next(self, waits: Callable[[], None]) -> dict[str, Any]:
        """The next call. waits: called before this worker waits for its program, or for that of another node. Raises
        Diverged on every node where they are not the same, TooManyRestarts where this one was restarted more often than
        the program allows."""
        if self._several:
            waits()
        call = self._channel.next(self._record.done + 1, waits)
        if call["number"] < 0:
            return call  # of this worker alone
        self._record.settle(call["before"])
        began = call["restarts"]
        if self._several:
            asked = [call["name"], call["digest"], began, _node(), _shown(call)]
            every = self._world.gather(asked)
            for other in every:
                if other[:2] != every[0][:2]:
                    raise Diverged(
                        f"call {call['number']} is {every[0][4]} on {every[0][3]} and {other[4]} on {other[3]}: run "
                        "the same program with the same arguments on every node"
                    )
            began = min(other[2] for other in every)
        limit = call["args"].get("max_retries")
        if self._several and limit is not None and self._restarts - began > limit:
            restarts = self._restarts - began
            why = os.environ.get("ELASTIC_AGENT_LAST_ROUND_ENDED", "")
            last = f"; last: {why}" if why else ""
            times = "once" if restarts == 1 else f"{restarts} times"
            raise TooManyRestarts(f"{call['name']} was restarted {times}; max_retries allows {limit}{last}")
        return call


def agree_on_trainer(made: dict[str, str], world: Callable[[], World] = World) -> None:
    """Collective, before any creator is called. made: what this node's trainer was made with. Raises Diverged on every
    node where another's was made with something else."""
    if not _several_nodes():
        return
    ours = world()
    if len(set(ours.gather(plain.digest(made)))) == 1:
        return
    (first, where), *others = ours.gather([made, _node()])
    for theirs, there in others:
        if (found := made_with.differences(first, theirs)) is not None:
            raise Diverged(
                f"the trainer is made with {found[0]} on {where} and with {found[1]} on {there}: make it with the same "
                "arguments on every node"
            )


def _several_nodes() -> bool:
    return int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1


def _node() -> str:
    """How messages name this node."""
    return f"{os.environ.get('HOSTNAME') or os.uname().nodename} (node {os.environ.get('GROUP_RANK')})"


def _shown(call: dict[str, Any]) -> str:
    """As the program's source has it."""
    return f"{call['name']}({', '.join(f'{name}={value!r}' for name, value in call['args'].items())})"
