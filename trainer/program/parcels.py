"""What calls hand to this host's workers beside their arguments: functions, and states to load, in private files."""

from __future__ import annotations

import os
from typing import Any

from .. import pickled_values
from ..names import SAVE

KEPT = 2
"""Parcels that stay when their calls are done. A state is kept before such a call is answered, and of states the two
newest stay: workers that find the newest one damaged do the last of these calls again, and none before it."""


class Parcels:
    """Of one trainer. Used by the program's thread."""

    def __init__(self, folder: str) -> None:
        """folder: the private directory."""
        self._folder, self._number = folder, 0
        self._made: list[str] = []

    def of(self, function: Any) -> str:
        """Pack a function; returns the parcel's name. Raises UsageError."""
        name = self._next()
        pickled_values.write(self._folder, name, "the function", function)
        self._made.append(name)
        return name

    def keep(self, data: bytes) -> str:
        """Pack these bytes; returns the parcel's name. Raises OSError."""
        name = self._next()
        with open(os.path.join(self._folder, name), "wb", opener=pickled_values.private) as file:
            self._made.append(name)
            file.write(data)
        return name

    def answered(self, call: str, parcel: str) -> None:
        """A call is done, and so are all that came before it: remove what no worker will ask for. What `save` hands
        over is of no use to workers that do it again: the file is in its place."""
        if call == SAVE and parcel:
            self._made.remove(parcel)
            os.unlink(os.path.join(self._folder, parcel))
        while len(self._made) > KEPT:
            os.unlink(os.path.join(self._folder, self._made.pop(0)))

    def _next(self) -> str:
        self._number += 1
        return f"parcel-{self._number}"
