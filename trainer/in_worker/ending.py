"""How a worker ends when something was raised: at once, with its cause where the agent and the program read it."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ...agent.errors import UsageError
from ...worker.errors import Misused, NotResumable, WrongState
from ...worker.failing import end_process, write_cause
from ..frames import Closed
from ..names import FORBIDDEN
from .channel import Channel
from .places import DiskFull, Left

_FINAL = (UsageError, Misused, NotResumable, WrongState, DiskFull, SystemExit)
"""Another start would end in the same way."""


@dataclass
class WorkerStage:
    """Where a worker is."""

    building: bool = True
    """What creators raise in the first round ends the job: they would raise it again."""


@contextmanager
def ending(channel: Channel, rank: int) -> Iterator[WorkerStage]:
    """Around all that a worker does. An exception ends this process without waiting for threads, loader processes or
    process groups, so that no other worker waits for it."""
    stage = WorkerStage()
    try:
        yield stage
    except Closed:
        os._exit(1)  # the program is gone, and with it who could be told
    except Left:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, an exit of the user's code too, this worker ends
        first = os.environ.get("ELASTIC_AGENT_ROUND") == "1"
        final = isinstance(error, _FINAL) or (stage.building and first and not _of_peers(error))
        _end(channel, rank, error, FORBIDDEN if final else 1)


@contextmanager
def of_the_user() -> Iterator[None]:
    """Around creators and `setup`: a connection that they find broken is one of their own, to a store of data for
    example. That a peer is lost is said there by torch, which raises no OSError."""
    try:
        yield
    except OSError as error:
        vars(error)[_USERS] = True
        raise


_USERS = "elastic_agent_of_the_user"
"""Attribute of an exception that tells nothing of a peer."""


def _of_peers(error: BaseException) -> bool:
    """Whether this says that another worker, or the network, is lost."""
    import torch.distributed as dist

    if getattr(error, _USERS, False):
        return False
    return isinstance(error, (dist.DistError, ConnectionError, TimeoutError)) or "gloo" in str(error).lower()


def _end(channel: Channel, rank: int, error: BaseException, code: int) -> None:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        message = f"SystemExit: a worker called sys.exit({error.code!r}); raise an exception, or return, instead"
    with suppress(OSError):
        channel.failed(message, text, rank)
    log = logging.getLogger("elastic_agent")

    def tell() -> None:
        write_cause(log, rank, message, text)
        if _of_peers(error):
            log.info("rank %d ends, as another worker is lost: %s", rank, message)
        elif code == FORBIDDEN and isinstance(error, _FINAL):
            log.warning("rank %d: %s", rank, message)
        else:
            log.error("rank %d failed: %s", rank, text)

    end_process(code, tell)
