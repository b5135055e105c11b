"""The run's log: what the first rank says, and what others say where they are asked."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

NAME = "elastic_agent.worker"

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:  # before Python 3.11 the class takes no type argument at run time
    _Adapter = logging.LoggerAdapter


class RunLog(_Adapter):
    """As `logging.Logger`: every record of rank 0, warnings and errors of the others, whose text names the rank."""

    def __init__(self, rank: int) -> None:
        _show_without_configuration()
        own = logging.getLogger(f"{NAME}.rank{rank}")
        if rank and own.level != logging.WARNING:
            own.setLevel(logging.WARNING)
        super().__init__(own, {})
        self._rank = rank
        self._said: set[str] = set()

    def warning_once(self, text: str) -> None:
        """A warning that is not repeated."""
        if text not in self._said:
            self._said.add(text)
            self.warning(text)

    @property
    def every_rank(self) -> logging.LoggerAdapter[logging.Logger]:
        """The same log without the limit to rank 0: `run.log.every_rank.info("...")` is said by each rank."""
        return _Named(logging.getLogger(f"{NAME}.every_rank"), {"rank": self._rank})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        named = not self._rank or str(msg).startswith("rank ")
        return (msg if named else f"rank {self._rank}: {msg}"), kwargs


class _Named(_Adapter):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"rank {(self.extra or {})['rank']}: {msg}", kwargs


class _Console(logging.Handler):
    """Writes to stderr where the script has not configured logging; silent where it has."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - as logging's own handlers: a console that is gone ends no training
            with contextlib.suppress(ValueError):  # which says so on the same console, and that may be closed
                self.handleError(record)


def _show_without_configuration() -> None:
    """Python drops `info` of a script that has not configured logging. What a run says is wanted then, too."""
    log = logging.getLogger(NAME)
    if not any(isinstance(handler, _Console) for handler in log.handlers):
        log.addHandler(_Console())
    if log.level == logging.NOTSET and not logging.getLogger().handlers:
        log.setLevel(logging.INFO)
