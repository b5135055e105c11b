"""Values that nodes of a job leave for each other in the store, beside records and announcements: bytes by name.

Neither machine reads them, and no record or heartbeat grows by them. The members of a large round are among them
(`codec/member_pages.py`); a small job of which no node asks for any has none. The memory store, c10d and etcd have
them; `tests/integration/store_contract/` tests each sentence here on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

MAX_VALUE_BYTES = 256 * 1024
"""etcd takes requests of 1.5 MiB by default."""


class Values(Protocol):
    """One connection, as `Store`, to the values of one incarnation of the job; what a call raises is a StoreError.

    A name is of ASCII letters, digits, `-` and `/`; what stands before its last `/` is its folder. A value has at least
    1 byte, and at most `MAX_VALUE_BYTES`."""

    def close(self) -> None:
        """As `Store.close`."""
        ...

    def write_values(self, values: Mapping[str, bytes]) -> None:
        """Write all of these, whatever is there, in few requests. Acknowledged when it returns; not in one step."""
        ...

    def read_values(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Those of these that are there, in few requests. Does not wait."""
        ...

    def delete_values(self, names: Sequence[str]) -> None:
        """Delete those of these that are there. They have one folder."""
        ...


@runtime_checkable
class SharedValues(Values, Protocol):
    """The same, for values that several nodes write, and that nodes wait for."""

    def write_value(self, name: str, value: bytes, *, over: bool = False) -> bool:
        """Write a value where there is none, or with `over` whatever is there. Returns whether it is there now: of
        several writers of one name one succeeds, and it may repeat its call."""
        ...

    def wait_values(self, names: Sequence[str], timeout_s: float) -> Mapping[str, bytes]:
        """Block until all of these are there, or `timeout_s` has passed; return those that are. They have one
        folder."""
        ...
