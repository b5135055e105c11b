"""The ranks of a run, and the few words they exchange outside of training: on a gloo group of their own, as JSON."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist

from . import errors
from .errors import Misused, WorkerLibraryError, text_of

_HOST = "cpu"
"""Where messages are, also where a script has called `torch.set_default_device("cuda")`."""
_LENGTH, _SHORT = 8, 1016
"""Bytes of a message's length, and of a message that goes with it in one exchange."""
PATIENCE_S = 60.0
"""How long this library waits in silence: for other ranks (`Party.waited` is called then), a disk, or copies."""
GLOO_TIMEOUT = timedelta(minutes=30)
"""Of a gloo group that is given none (torch 2.13, `default_pg_timeout`)."""


class Party:
    """Some ranks, and the messages between them. Collective: every member calls each method, in the same order."""

    def __init__(self, rank: int = 0, size: int = 1, group: Callable[[], Any] = lambda: None) -> None:
        """rank: this one's number among the members. group: gives their gloo group."""
        self.rank, self.size, self._group = rank, size, group
        self.waited: Callable[[], None] | None = None
        """Called where this rank has waited for PATIENCE_S in `most`; it then waits on."""

    @property
    def group(self) -> Any:
        """The process group of our own, on gloo; None where there is one rank. Not to be kept: see above."""
        return self._group()

    def gather(self, message: Any) -> list[Any]:
        """Collective: each rank's message, by rank. A message is what JSON can hold."""
        if self.size == 1:
            return [message]
        return [json.loads(part.decode()) for part in self.gather_bytes(json.dumps(message).encode())]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Collective: each rank's bytes, by rank."""
        if self.size == 1:
            return [data]
        # Most messages are short: one exchange has their length and all of them.
        heads = self._gather_equal(len(data).to_bytes(_LENGTH, "little") + data[:_SHORT], _LENGTH + _SHORT)
        lengths = [int.from_bytes(head[:_LENGTH], "little") for head in heads]
        parts = [head[_LENGTH : _LENGTH + length] for head, length in zip(heads, lengths, strict=True)]
        if (rest := max(lengths) - _SHORT) <= 0:
            return parts
        rests = self._gather_equal(data[_SHORT:], rest)
        return [(part + end)[:length] for part, end, length in zip(parts, rests, lengths, strict=True)]

    def _gather_equal(self, data: bytes, size: int) -> list[bytes]:
        """Collective: so many bytes of each rank, zeros behind its data."""
        mine = torch.zeros(size, dtype=torch.uint8, device=_HOST)
        if data:
            mine[: len(data)] = _tensor_of(data)
        parts = [torch.zeros(size, dtype=torch.uint8, device=_HOST) for _ in range(self.size)]
        dist.all_gather(parts, mine, group=self._group())
        return [_bytes_of(part) for part in parts]

    def most(self, numbers: list[int]) -> list[int]:
        """Collective: the largest of each number over all ranks."""
        if self.size == 1:
            return numbers
        largest = torch.tensor(numbers, dtype=torch.int64, device=_HOST)
        self._finish(dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self._group(), async_op=True))
        return [int(number) for number in largest]

    def _finish(self, work: Any) -> None:
        if self.waited is not None:
            try:
                work.wait(timedelta(seconds=PATIENCE_S))
                return
            except RuntimeError:
                if work.is_completed():  # it failed; else it goes on, and may be waited for again
                    raise
            self.waited()
        work.wait()

    def send(self, data: bytearray, length: int, target: int) -> None:
        """The first bytes of these, at least one, for a member that waits for them in `receive`."""
        dist.send(torch.frombuffer(data, dtype=torch.uint8, count=length), self._of_all(target), group=self._group())

    def receive(self, into: bytearray, length: int, source: int) -> None:
        """So many bytes, at least one, that a member sends, to the beginning of these."""
        dist.recv(torch.frombuffer(into, dtype=torch.uint8, count=length), self._of_all(source), group=self._group())

    def _of_all(self, member: int) -> int:
        """A member's number among all ranks."""
        return dist.get_global_rank(self._group(), member)

    def together(self, act: Callable[[], Any]) -> list[Any]:
        """Collective: what `act` returned on each rank, by rank. Where it raised on any, all raise: its own error on
        that rank, elsewhere one of the same class (OSError for those that are not of this library)."""
        failed, made = None, None
        try:
            made = act()
        except Exception as error:  # noqa: BLE001 - raised again below, when the others know
            failed = error
        said = self.gather([made if failed is None else text_of(failed), type(failed).__name__ if failed else ""])
        if failed is not None:
            raise failed
        for rank, (text, kind) in enumerate(said):
            if kind:
                raised = getattr(errors, kind, OSError)
                raise (raised if issubclass(raised, WorkerLibraryError) else OSError)(f"rank {rank}: {text}")
        return [made for made, _ in said]


class World(Party):
    """This rank among all of the run."""

    def __init__(self) -> None:
        """Collective. Raises Misused where a launcher started several ranks and no process group exists yet."""
        super().__init__()
        if dist.is_available() and dist.is_initialized():
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            # The training's own groups carry no message of ours, whatever their backend is.
            if self.size > 1:
                atexit.register(leave_groups, os.getpid())
                self._group = _group_of_all()
                # A rank that has its group may fail in its next line; the others would fail in the midst of theirs, and
                # name a connection instead of what is wrong.
                self.sum([0.0])
        elif (size := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
            raise Misused(
                f"WORLD_SIZE is {size} and there is no process group: call torch.distributed.init_process_group() "
                "before Run(...)"
            )
        # Not every launcher says it: any rank may be the first of its node then.
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))

    def party(self, members: list[int]) -> Party:
        """Collective among `members`, ranks of which this is one, in order: a party with a group of its own, for a
        thread that exchanges messages while others do."""
        if len(members) == 1:
            return Party()
        return Party(members.index(self.rank), len(members), _new_group(members))

    def broadcast(self, message: Any, source: int = 0) -> Any:
        """Collective: the message of `source`."""
        if self.size == 1:
            return message
        data = json.dumps(message).encode() if self.rank == source else b""
        return json.loads(self.broadcast_bytes(data, source).decode())

    def broadcast_bytes(self, data: bytes, source: int) -> bytes:
        """Collective: the bytes of `source`."""
        if self.size == 1:
            return data
        length = torch.tensor([len(data)], device=_HOST)
        dist.broadcast(length, source, group=self._group())
        if not int(length):
            return b""
        buffer = _tensor_of(data) if self.rank == source else torch.empty(int(length), dtype=torch.uint8, device=_HOST)
        dist.broadcast(buffer, source, group=self._group())
        return data if self.rank == source else _bytes_of(buffer)

    def sum(self, numbers: list[float]) -> list[float]:
        """Collective: the sums over all ranks, in double precision."""
        if self.size == 1:
            return numbers
        totals = torch.tensor(numbers, dtype=torch.float64, device=_HOST)
        dist.all_reduce(totals, group=self._group())
        return [float(total) for total in totals]


_ours: weakref.WeakSet[Any] = weakref.WeakSet()
"""The groups of this library, as long as torch holds them."""


_of_thread = threading.local()


def _group_of_all() -> Callable[[], Any]:
    """One for all runs of a thread, whose messages keep their order: each group has threads and sockets for as long as
    the training's own is there, and a script may make a hundred runs, one a fold."""
    whole, patience = dist.group.WORLD, _patience_of_all()
    kept = getattr(_of_thread, "kept", None)
    if kept is None or kept[0]() is not whole or kept[1] != patience or kept[2]() is None:
        kept = _of_thread.kept = (weakref.ref(whole), patience, _new_group(None))
    return cast("Callable[[], Any]", kept[2])


def _new_group(members: list[int] | None) -> Callable[[], Any]:
    # Weak: torch holds the group until destroy_process_group.
    made = dist.new_group(
        members, backend="gloo", timeout=_patience_of_all(), use_local_synchronization=members is not None
    )
    _ours.add(made)
    return weakref.ref(made)


def _patience_of_all() -> timedelta:
    """A script that lets one rank work alone for hours says so to `init_process_group`, and a group of ours must not
    give up before."""
    group: Any = dist.group.WORLD
    known = [GLOO_TIMEOUT]
    for device in group._device_types:
        with contextlib.suppress(AttributeError, RuntimeError):  # a backend that does not tell
            known.append(group._get_backend(device).options._timeout)
    return max(known)


def leave_groups(made_by: int) -> None:
    """At the end of an interpreter: threads of a gloo group that is still there may abort the process. The training's
    own group is left as well where it is gloo's; others may wait for ranks.

    made_by: the process whose groups they are. One that it forks has none of the threads, and would wait for them."""
    if os.getpid() != made_by or not (dist.is_available() and dist.is_initialized()):
        return
    if dist.get_backend() == dist.Backend.GLOO:
        dist.destroy_process_group()
        return
    for group in list(_ours):
        dist.destroy_process_group(group)


def _tensor_of(data: bytes) -> torch.Tensor:
    """The bytes, at least one, as a tensor of its own."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """What a tensor of bytes holds; without numpy, which need not be there."""
    return ctypes.string_at(tensor.data_ptr(), len(tensor))
