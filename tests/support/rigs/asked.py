"""What switches ask of a job, and what they say."""

from __future__ import annotations

import threading
from collections.abc import Callable

from elastic_agent.rendezvous.agreements import Act

BOUND_S = 60.0


class Asked:
    """Takes both, from any thread."""

    def __init__(self) -> None:
        self.acts: list[tuple[Act, str, str]] = []
        """Act, why, and the label."""
        self.told: list[str] = []
        self._changed = threading.Condition()

    def ask(self, act: Act, because: str, label: str) -> None:
        with self._changed:
            self.acts.append((act, because, label))
            self._changed.notify_all()

    def warn(self, text: str) -> None:
        with self._changed:
            self.told.append(text)
            self._changed.notify_all()

    def tell(self, text: str, routine: bool) -> None:
        """As `warn`, of the first look."""
        assert not routine
        self.warn(text)

    def wait(self, until: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(until, BOUND_S), (self.acts, self.told)
