"""A console that is an object of the program around the agent: a notebook's `sys.stdout`, or what `redirect_stdout` put
there."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import TextIO

from .sinks import Sink


class ProgramConsole(Sink):
    """As `Console`, for an object with `write` and `flush`. Nothing can be known about whether it blocks."""

    terminal = False

    def __init__(self, stream: TextIO, name: str, report: Callable[[str], None]) -> None:
        super().__init__(name, report)
        self.fd = -1
        self._stream = stream
        # A character's bytes may come in two pieces.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stopped = False

    def write(self, data: bytes) -> None:
        """Write and flush, on this sink's thread."""
        if self._stopped:
            self.drop(data, "it was not written before the agent ended")
            return
        try:
            self._stream.write(self._decoder.decode(data))
            self._stream.flush()
        except Exception as error:  # noqa: BLE001 - the program's own code; workers go on without it
            self.drop(data, f"{type(error).__name__}: {error}")
            return
        self._wrote(memoryview(data))
        self.report_loss()

    def report_last_loss(self, written: bool) -> None:
        """As `Console.report_last_loss`."""
        self.report_loss(last=True)

    def stop_waiting(self) -> None:
        """From now on drop what comes."""
        self._stopped = True

    def close(self) -> None:
        """Nothing to close: the object is the program's."""
