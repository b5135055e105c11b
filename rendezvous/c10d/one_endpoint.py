"""The endpoint of a job that names one node, while another may host the store next (docs/adr/0055).

The job begins in the server of the node that has the endpoint. Each other node reserves a port at its start, publishes
it, and serves there once it is elected; the members of a round know those of its voters. Who knows the endpoint alone
finds the job there once its node is back: members write the pointer into that node's server, and it begins no job of
its own.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from ..endpoint import Endpoint, bound_anywhere, parse_endpoint
from ..store import StoreElsewhere, StoreReplaced, StoreUnreachable
from .client import TcpStoreClient
from .keys import SERVED, Keys, excerpt
from .listed import Found, Listed, Pointer, Reserve, first_answer, read_pointer

HOPES = 2.0
"""Leases behind the loss of a host for which its members expect a next one: they elect within 0.8 of a lease, and who
is elected serves at once. So long the node of the endpoint, back meanwhile, waits with a job of its own."""


class OneEndpoint(Listed):
    """That endpoint, where else members of the last round could host, and this node's port or server."""

    def __init__(self, endpoint: Endpoint, keys: Keys, lease_s: float) -> None:
        super().__init__((endpoint,), keys)
        self.first_endpoint = endpoint
        self.hopes_s = HOPES * lease_s
        self.newest: Pointer | None = None
        """Who hosts the job, as far as this node knows."""
        self.lost_at: float | None = None
        """Since when no store of the job was reached; None: it was."""
        self.replaced: StoreReplaced | None = None
        """As the server at the endpoint showed last: the job of this node is over."""
        self._places: tuple[Endpoint, ...] = ()
        self._start: Reserve | None = None
        self._bound: socket.socket | None = None

    @property
    def reserved(self) -> str:
        """Where this node could host: HOST:PORT; `:PORT` of all its addresses; empty: nowhere."""
        if self.own is not None:
            return str(self.own)
        return "" if self._bound is None else f":{self._bound.getsockname()[1]}"

    def reserve(self, start: Reserve) -> None:
        """Reserve a port. Nothing listens there before `serve`, so who looks for a host is refused at once."""
        self._start = start
        if self.own is None and self._bound is None:
            with suppress(OSError):  # no descriptor is left: this node never hosts
                self._bound = bound_anywhere()

    def serve(self, at: str) -> None:
        """Serve at the reserved port, which others reach there. Raises OSError if this host refuses that."""
        if self.server is None and self._bound is not None and self._start is not None:
            bound, self._bound = self._bound, None
            self.server, self.own = self._start(bound), parse_endpoint(at)

    def close(self) -> None:
        super().close()
        if self._bound is not None:
            self._bound.close()

    # -- looking for the job ------------------------------------------------------------------------------------------

    def expect(self, places: tuple[str, ...]) -> None:
        """Other members of the last round could host at these. Empty: no next host is to be expected."""
        self._places = tuple(map(parse_endpoint, places))

    @property
    def _goes_on(self) -> bool:
        """Whether the job has a host, or a next one is to be expected."""
        lost_at = self.lost_at
        return lost_at is None or (bool(self._places) and time.monotonic() < lost_at + self.hopes_s)

    @property
    def is_late(self) -> bool:
        """Whether a next host would have been found by now."""
        return self.lost_at is not None and not self._goes_on

    @property
    def asked(self) -> str:
        """Where a next host was looked for, for people; empty: nowhere."""
        others = [str(place) for place in self._places if place != self.first_endpoint]
        if not others:
            return ""
        return (
            f"; no other node hosts it yet (asked at {', '.join(others)}; where these ports are closed between nodes, "
            "list several nodes in --rdzv-endpoint)"
        )

    def look(self, after: int = 0) -> Found:
        """Ask the nodes that could host, then at the endpoint; what serves there is told of the job."""
        found = self.look_at([place for place in self._places if place != self.silent], after)
        if found.hosted is not None or self.own == self.first_endpoint or self.silent is not None:
            return found
        there = self.meet()
        if there is None or there.job != self._job:
            return Found(None, None, False)
        if there.epoch > after:
            return self.look_at((parse_endpoint(there.endpoint),), after)
        return Found(None, None, True)

    @property
    def _job(self) -> str:
        return "-" if self.newest is None else self.newest.job

    def meet(self) -> Pointer | None:
        """What the server at the endpoint says once it is told of the job, if one answers."""
        self.replaced = None
        with suppress(StoreUnreachable):
            return first_answer(self.first_endpoint, lambda client, _: self.tell(client))
        return None

    def tell(self, client: TcpStoreClient) -> Pointer | None:
        """Write who hosts the job into this server, unless it knows better. Returns what it holds then; None: nothing
        of this job, or the job's own host, which has begun no round. Sets `replaced` if the job of this node is over.
        """
        mine, keys = self.newest, self.keys
        found = client.get([SERVED, keys.pointer, keys.life])
        served = found.get(SERVED)
        written = found.get(keys.pointer, b"")
        there = read_pointer(written)
        if mine is None or served not in (None, keys.served) or (there is None and served is None):
            return None
        if there is None:
            if found.get(keys.life) == mine.job.encode():
                return None
            if self._goes_on:
                there = read_pointer(client.compare_set(keys.pointer, written, mine.encode()))
            else:
                self.replaced = self._restarted()
                return None
        if there is None or there.job != mine.job:
            foreign = there if served is None else None
            self.replaced = self._restarted() if foreign is None else elsewhere(self.first_endpoint, foreign)
        elif there.epoch < mine.epoch:
            there = read_pointer(client.compare_set(keys.pointer, there.encode(), mine.encode()))
        return there

    def _restarted(self) -> StoreReplaced:
        return StoreReplaced(
            f"{self.first_endpoint} was restarted and has lost the records of job {excerpt(self.keys.served)}; "
            "restart all agents"
        )


def elsewhere(endpoint: Endpoint, there: Pointer) -> StoreElsewhere:
    """The error of a node that has joined or begun a job at this endpoint while another one goes on."""
    if there.endpoint == str(endpoint):
        return StoreElsewhere(f"the job of this run id has lost its host at {endpoint}, and awaits the next one")
    return StoreElsewhere(
        f"the job of this run id goes on without {endpoint}, and is hosted at {there.endpoint} (epoch {there.epoch})"
    )


def unreachable(place: str, error: Exception) -> str:
    """Why a store that another node hosts now is not reached, and what to do about it."""
    return (
        f"the job is hosted at {place} now, which this node does not reach ({error}); open that port between the "
        "nodes, or list several nodes in --rdzv-endpoint, whose ports are known"
    )
