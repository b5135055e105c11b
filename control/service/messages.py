"""The messages of `proto/control.proto` as frozen values, and their proto3 JSON; a test compares the two.

`Status` and `Member` are those that an agent reports to its program.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, TypeVar

from ...agent.report import Status
from ...proto.frozen import dataclass
from ...rendezvous.records import Member
from .request_messages import (
    DrainRequest,
    EventsRequest,
    JobRequest,
    LogsRequest,
    Nothing,
    RestartRoundRequest,
    SaveRequest,
    SetWatchRequest,
    StacksRequest,
    StatusRequest,
    StopRequest,
)
from .time_messages import Goodput, LostTime, RankSteps, SpentTime

__all__ = [
    "DrainRequest",
    "EventsRequest",
    "Goodput",
    "JobRequest",
    "LogsRequest",
    "LostTime",
    "Member",
    "Nothing",
    "RankSteps",
    "RestartRoundRequest",
    "SaveRequest",
    "SetWatchRequest",
    "SpentTime",
    "StacksRequest",
    "Status",
    "StatusRequest",
    "StopRequest",
]
Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the job."""

    name: str
    state: str = ""
    """As its record says; lost; or unknown, where only the coordinator knows."""
    group_rank: int | None = None
    rank_offset: int = 0
    nproc: int = 0
    heard_age_s: float | None = None
    """None: only the coordinator has it of other nodes."""
    restarts_left: int | None = None
    own: bool = False
    """The agent that answers."""
    because: str = ""
    round: int = 0
    waits: bool = False
    """It waits for a place in a round."""
    control: str = ""
    """HOST:PORT of its agent's control service on TCP; empty: it has none."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a round ended."""

    round: int
    kind: str
    because: str
    charged: str = ""
    """Name of the node that was charged a restart; empty: none was."""
    rank: int | None = None
    failure: str = ""
    judged: str = ""
    """Whether `failure` is known to be the cause."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all ranks do at one step boundary."""

    act: str
    label: str = ""
    because: str = ""
    at: int = 0
    """The boundary; 0: not decided."""
    over: bool = False


@dataclass(frozen=True, slots=True)
class OtherNodes:
    """Nodes that a brief answer does not list, as nothing is wrong with them."""

    nodes: int = 0
    placed: int = 0
    """Of them, those that have a place in the round."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a scheduler may do for the job."""

    needed: int = 0
    """Nodes without which no round begins."""
    helpful: int = 0
    """Nodes that would get a place, those that are needed among them."""
    suspects: tuple[str, ...] = ()
    """Nodes to look at or to replace: silent, lost, or charged with the last failure."""
    spare: tuple[str, ...] = ()
    """Nodes that may be drained, in this order; only the coordinator knows."""


@dataclass(frozen=True, slots=True)
class Job:
    """The whole job as one agent reports it."""

    run_id: str
    name: str
    """Of the node that answers."""
    source: str
    """`coordinator`: at first hand; `announcement`: as announced `announced_age_s` ago."""
    announced_age_s: float | None = None
    phase: str = ""
    because: str = ""
    round: int = 0
    round_age_s: float | None = None
    min_nodes: int = 1
    max_nodes: int = 1
    world_size: int = 0
    restarts: int = 0
    nodes: tuple[Node, ...] = ()
    ended: Ending | None = None
    agreement: Agreement | None = None
    outcome: str = ""
    finishing: bool = False
    store: str = ""
    store_trouble: str = ""
    lease_s: float = 0.0
    age_s: float = 0.0
    last_event: int = 0
    command: str = ""
    ends_in_s: float | None = None
    """Until the job's time ends; None: not known."""
    checkpoints: str = ""
    """The directory of --exact-resume."""
    capacity: Capacity | None = None
    others: OtherNodes | None = None
    """Only in a brief answer."""
    store_latency_s: float | None = None
    """How long the store took to answer this node's last heartbeat."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker of the node."""

    rank: int
    local_rank: int
    pid: int
    state: str
    age_s: float = 0.0
    written_bytes: float = 0.0
    rss_bytes: float = 0.0
    cpu_s: float = 0.0
    section: str = ""
    steps: int = 0
    mark_age_s: float | None = None
    stdout_file: str = ""
    stderr_file: str = ""
    importing: bool = False


@dataclass(frozen=True, slots=True)
class Workers:
    """This node's workers."""

    name: str
    round: int = 0
    workers: tuple[Worker, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, as one agent reports it."""

    number: int
    time_s: float
    """In seconds since 1970."""
    at_s: float
    """On the host's monotonic clock."""
    node: str
    what: str
    """`event`: of this node; `announced`: by this node as the coordinator; `concluded`: how this agent ended."""
    happened: str = ""
    phase: str = ""
    round: int = 0
    because: str = ""
    restarts_used: int = 0
    failure: str = ""
    members: tuple[Member, ...] = ()
    version: int = 0
    restarts: int = 0
    ended: Ending | None = None
    outcome: str = ""
    exit_code: int = 0
    missed: int = 0
    """Events before it that are not kept any more."""
    id: str = ""
    cause: str = ""
    stage: str = ""
    took_s: float = 0.0
    step: int = 0
    watch: str = ""
    until_s: float = 0.0
    form: int = 0
    """Version of the form of events, also in files."""


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Workers that stand at the same place."""

    ranks: tuple[int, ...]
    at: str
    waits: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class Stacks:
    """Where this node's workers stand."""

    name: str
    round: int = 0
    groups: tuple[StackGroup, ...] = ()
    """The odd one first."""
    native: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of what a worker has written."""

    rank: int
    stream: str
    """stdout, stderr; `output`, where both go one way."""
    text: str = ""
    file: str = ""
    missed_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """What was done, in one sentence."""

    text: str


# -- JSON -------------------------------------------------------------------------------------------------------------


def to_json(message: object) -> bytes:
    """A message as one line of proto3 JSON, without the end of the line. Fields of its own are all there; of messages
    in it, those that are not at their default."""
    return json.dumps(_fields(message, sparse=False), separators=(",", ":")).encode()


def from_json(kind: type[Message], body: bytes) -> Message:
    """A request from its JSON; names as in JSON or as in the contract. Raises ValueError in one line."""
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise ValueError("the body is no JSON") from None
    if not isinstance(found, dict):
        raise ValueError("the body is no JSON object")
    known = _names(kind)
    by_json = {**{name: name for name in known}, **{each: name for name, each in known.items()}}
    values: dict[str, Any] = {}
    for name, value in found.items():
        if name not in by_json:
            raise ValueError(f"{name!r:.80} is no field of this request; it has {', '.join(known) or 'none'}")
        if value is not None:
            values[by_json[name]] = _value(kind.__annotations__[by_json[name]], by_json[name], value)
    return kind(**values)


def _value(wanted: str, name: str, value: object) -> object:
    if wanted == "tuple[int, ...]":
        if not isinstance(value, list):
            raise ValueError(f"{name} is {value!r:.80}; give a list of numbers")
        return tuple(_value("int", name, each) for each in value)
    kinds = {"str": str, "bool": bool, "int": int}
    if type(value) is not kinds[wanted]:
        raise ValueError(f"{name} is {value!r:.80}; it is of type {wanted}")
    if type(value) is int and not -(2**31) <= value < 2**31:
        raise ValueError(f"{name} is {value}; it has 32 bits")
    return value


def _names(kind: Any) -> dict[str, str]:  # noqa: ANN401 - the class of a message
    """The fields of a message: names, and those in JSON."""
    found = _NAMES.get(kind)
    if found is None:
        found = _NAMES[kind] = {name: json_name(name) for name in kind.__annotations__}
    return found


_NAMES: dict[object, dict[str, str]] = {}


def json_name(name: str) -> str:
    """`group_rank` as JSON has it: `groupRank`."""
    first, *others = name.split("_")
    return first + "".join(each.capitalize() for each in others)


def _fields(message: object, *, sparse: bool) -> dict[str, object]:
    made: dict[str, object] = {}
    for name, in_json in _names(type(message)).items():
        value = getattr(message, name)
        if value is None or (sparse and not value and name not in _ALWAYS):
            continue
        # What most fields are, without a call: a job has thousands.
        made[in_json] = value if type(value) in _AS_THEY_ARE else _plain(value)
    return made


_ALWAYS = frozenset({"rank", "group_rank", "local_rank", "heard_age_s", "restarts_left", "rank_offset"})
"""Fields in which 0 says something."""
_AS_THEY_ARE = frozenset({int, float, bool})


def _plain(value: object) -> object:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()  # paths may be no text
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Iterable):
        return [_plain(each) for each in value]
    return _fields(value, sparse=True)
