"""The requests of `proto/control.proto` as frozen values."""

from __future__ import annotations

from ...proto.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Nothing:
    """A request without fields: of Workers and Goodput."""


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """`brief`: of more than BRIEF_NODES members only this node."""

    brief: bool = False


@dataclass(frozen=True, slots=True)
class JobRequest:
    """`brief`: of more than BRIEF_NODES nodes only those that need attention."""

    brief: bool = False


@dataclass(frozen=True, slots=True)
class EventsRequest:
    """Which events a client reads."""

    since: int = 0
    """Number of the first event wanted; 0: all that is kept; negative: the last so many."""
    follow: bool = False


@dataclass(frozen=True, slots=True)
class StacksRequest:
    """Of which workers; none: of all of this node."""

    ranks: tuple[int, ...] = ()
    native: bool = False


@dataclass(frozen=True, slots=True)
class LogsRequest:
    """Of which workers; none: of all of this node."""

    ranks: tuple[int, ...] = ()
    tail_bytes: int = 0
    """0: all that is remembered."""
    follow: bool = False
    tail_lines: int = 0
    """Of that, the last so many lines of each stream; 0: all; -1: none."""


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """This node leaves the job in order."""

    reason: str = ""
    """Why, for the log and the events."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """This node; `job`: all ranks save and exit, and every agent ends with 83; `requeue`: with 75."""

    reason: str = ""
    job: bool = False
    requeue: bool = False


@dataclass(frozen=True, slots=True)
class RestartRoundRequest:
    """All ranks save and are started again."""

    reason: str = ""
    """Why, for the log and the events."""


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """Why, and the label of the checkpoint, which is kept."""

    reason: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class SetWatchRequest:
    """Names of usual watches, or the text of a table; both empty: nothing."""

    names: str = ""
    table: str = ""
