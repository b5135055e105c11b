"""What a session has, beside `Store`, where another node may host the store next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable


@runtime_checkable
class Movable(Protocol):
    """What a session of a store has that another node may host next, beside `Store`."""

    epoch: int
    """Of the host that this session is with."""

    @property
    def reserved(self) -> str:
        """Where this node could host the store; empty: nowhere."""
        ...

    def notify_moves(self, moved: Callable[[str, int], None]) -> None:
        """Call this, from any thread, with each other host that this node finds, and its epoch."""
        ...

    def host(self, epoch: int, node: str, job: bytes, announced: tuple[int, bytes], at: str) -> None:
        """Serve the store here from now on, with this job's record, and this announcement and its version. `at`: where,
        as this node has published it."""
        ...

    def suspect(self, given_up: bool) -> None:
        """The host is silent: from now on sessions look for another one first. `given_up`: this node has promised
        another one to let it host, so no session is with the silent one any more, should it answer again."""
        ...

    def tell_old(self) -> None:
        """Tell hosts before this one, which may only have been silent, who hosts the job, until the store is closed."""
        ...


@runtime_checkable
class Addressed(Protocol):
    """What a session has of a job that strangers know by the endpoint of its first host alone (docs/adr/0055), beside
    `Movable`."""

    def expect(self, places: tuple[str, ...]) -> None:
        """Other members of the last round could host at these endpoints."""
        ...

    def tell(self) -> None:
        """Tell what serves at that endpoint who hosts the job, until the store is closed. Raises StoreReplaced if
        another job has begun there."""
        ...
