"""How a job ended, as the exception that torch raises for it, so that code around torchrun catches what it expects."""

from __future__ import annotations

import signal
import time
from typing import Any

from ...agent.errors import AgentError, OtherJob, OtherVersion, RendezvousTimedOut, StoppedBySignal, StoreLost
from ...agent.errors import WorkersFailed as Failed
from ...rendezvous.failures import WorkerFailure

_NO_FILE = "<N/A>"
"""What torch has in place of a path."""


def as_torch_error(error: AgentError, title: str) -> Exception | None:
    """torch's exception for `error`; None if torch has none. `title`: what the failure summary calls the job."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import api as rendezvous

    if isinstance(error, Failed):
        # As with torchrun, this node's; where the cause was on another node, that one.
        failures = error.failures or ((error.cause,) if error.cause else ())
        if not failures:
            return None
        return ChildFailedError(title, {failure.rank: _process_failure(failure) for failure in failures})
    if isinstance(error, StoppedBySignal):
        return SignalException(str(error), signal.Signals(error.signum))
    if isinstance(error, RendezvousTimedOut):
        return rendezvous.RendezvousTimeoutError(str(error))
    if isinstance(error, StoreLost):
        return rendezvous.RendezvousConnectionError(str(error))
    if isinstance(error, OtherJob | OtherVersion):
        return rendezvous.RendezvousStateError(str(error))
    return None


def _process_failure(failure: WorkerFailure) -> Any:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    fields = (failure.local_rank, failure.pid, failure.exit_code)
    try:
        return ProcessFailure(*fields, failure.error_file)
    except Exception:  # noqa: BLE001 - torch parses the worker's file, which may hold anything
        made = ProcessFailure(*fields, "")
        made.error_file = failure.error_file or _NO_FILE
        made.message = failure.message or made.message
        made.timestamp = int(time.time())
        return made
