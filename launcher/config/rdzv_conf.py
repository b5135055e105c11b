"""`--rdzv-conf`: its keys, what each sets, and the limits they set each other.

torch 2.13 uses `join_timeout`, `last_call_timeout`, `close_timeout`, `heartbeat_timeout`, `keep_alive_interval`,
`keep_alive_max_attempt`, `store_type`, `read_timeout`, `is_host`, `timeout` and `rank`. Each is accepted, with torch's
meaning if it has an effect here. torch ignores any other key; here that is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ...agent.errors import UsageError
from ...agent.spec import RendezvousSpec
from ...proto.frozen import dataclass
from ...rendezvous.records import OUTVOTING_BEATS, Survivor
from .values import seconds, suggest, truth, whole

KEYS = {
    "join_timeout": "most seconds to wait for the minimum of nodes (600)",
    "last_call_timeout": "most seconds to wait for more nodes than the minimum (30)",
    "quiet": "seconds without a new node after which the last call ends early (3)",
    "last_call_quiet": "the same as quiet",
    "beat": "seconds between a node's heartbeats (a fifth of lease, at most 2)",
    "lease": "seconds without a heartbeat after which a node is lost (5)",
    "keep_alive_interval": "torchrun's name for beat",
    "keep_alive_max_attempt": "heartbeats missed until a node is lost: lease = interval x attempts",
    "store_grace": "seconds for which workers go on while the store does not answer (30)",
    "survivor": "who replaces a host of the store that is silent for a lease: majority, go, or wait (majority)",
    "read_timeout": "seconds to wait for a store at the endpoint, at most join_timeout (60)",
    "timeout": "static: the default of join_timeout and read_timeout (900)",
    "is_host": "whether this node hosts the store (the node that can bind the endpoint does)",
    "store_type": "tcp, the only one",
    "rank": "static, from a program: the same as node_rank",
    "heartbeat_timeout": "accepted, without effect",
    "close_timeout": "accepted, without effect",
}
"""Every key, with its meaning, and its default in brackets."""

STATIC_TIMEOUT_S = 900.0
"""How long a static rendezvous waits for node 0, and for all nodes; the value in torch's LaunchConfig."""
_BEAT_MOST_S = 2.0
"""The longest default of beat. Each heartbeat costs the store; but by it a node also finds that the store is gone."""
_TORCH_INTERVAL_S, _TORCH_ATTEMPTS = 5.0, 3
"""torch's defaults of keep_alive_interval and keep_alive_max_attempt, used if only the other one is given."""
_TWINS = (
    ("quiet", "last_call_quiet"),
    ("beat", "keep_alive_interval"),
    ("beat", "keep_alive_max_attempt"),
    ("lease", "keep_alive_max_attempt"),
    ("lease", "keep_alive_interval"),
)
_DEFAULTS = RendezvousSpec()
_NAMES = {key: f"--rdzv-conf {key}" for key in KEYS}


Conf = Mapping[str, str | int | float]
"""Keys and values; those of the command line are text, those of a program may be numbers."""


@dataclass(frozen=True, slots=True)
class RdzvConf:
    """The settings, checked. Times in seconds."""

    join_timeout_s: float
    last_call_timeout_s: float
    quiet_s: float
    beat_s: float
    lease_s: float
    store_grace_s: float
    connect_timeout_s: float
    survivor: Survivor | None
    """None: as the job's size suggests."""
    is_host: bool | None
    rank: int | None
    warnings: tuple[str, ...]


def split_rdzv_conf(name: str, text: str) -> dict[str, str]:
    """`key=value,key=value` as a mapping. Quotes that a shell did not take off, around all of it or around a value, are
    taken off. Raises UsageError for a part without key or value, or a key given twice."""
    pairs: dict[str, str] = {}
    text = unquoted(text)
    for part in text.split(",") if text else ():
        key, _, value = (unquoted(piece) for piece in part.partition("="))
        if not key or not value:
            raise UsageError(
                f"{name} has {part!r}, which is no key=value; write, for example, join_timeout=60,is_host=true"
            )
        if key in pairs:
            raise UsageError(f"{name} gives {key} twice, {pairs[key]!r} and {value!r}; give it once")
        pairs[key] = value
    return pairs


def unquoted(text: str) -> str:
    """`text` without space around it, and without the quotes that it begins and ends with."""
    text = text.strip()
    return text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def read_rdzv_conf(given: Conf, *, static: bool, also: Iterable[str] = ()) -> RdzvConf:
    """Check keys and values, also against each other; raises UsageError. `also`: keys that only the caller reads."""
    refuse_unknown(given, {*KEYS, *also})
    for ours, theirs in _TWINS:
        if ours in given and theirs in given:
            raise UsageError(f"--rdzv-conf gives both {ours} and {theirs}, which set the same; give only one of them")
    if str(given.get("store_type", "tcp")).strip().lower() != "tcp":
        raise UsageError(f"--rdzv-conf store_type is {given['store_type']!r}, but only tcp is supported; leave it out")
    beat_s, lease_s = _liveness(given)
    join_s, connect_s = _waits(given, static)
    if "lease" in given and lease_s >= join_s:
        raise UsageError(f"--rdzv-conf lease is {lease_s:g} s, not less than join_timeout ({join_s:g} s); lower it")
    last_call_s, quiet_s = _last_call(given)
    return RdzvConf(
        join_timeout_s=join_s,
        last_call_timeout_s=last_call_s,
        quiet_s=quiet_s,
        beat_s=beat_s,
        lease_s=lease_s,
        store_grace_s=_time(given, "store_grace", _DEFAULTS.store_grace_s),
        connect_timeout_s=connect_s,
        survivor=_survivor(given),
        is_host=truth(_NAMES["is_host"], given["is_host"]) if "is_host" in given else None,
        rank=whole(_NAMES["rank"], given["rank"]) if "rank" in given else None,
        warnings=tuple(_without_effect(given, static)),
    )


def refuse_unknown(given: Conf, known: Collection[str]) -> None:
    """Raises UsageError for a key that is not in `known`."""
    for key in given:
        if key not in known:
            raise UsageError(
                f"--rdzv-conf has no key {key!r}{suggest(key.lower(), known)}; its keys are {', '.join(sorted(known))}"
            )


def _time(given: Conf, key: str, default: float, *, above_zero: bool = False) -> float:
    return seconds(_NAMES[key], given[key], above_zero=above_zero) if key in given else default


def usual_beat_s(lease_s: float) -> float:
    """Seconds between heartbeats where only the lease, in seconds, is given."""
    return min(lease_s / OUTVOTING_BEATS, _BEAT_MOST_S)


def _liveness(given: Conf) -> tuple[float, float]:
    """Seconds between heartbeats, and the lease in seconds."""
    if "keep_alive_interval" in given or "keep_alive_max_attempt" in given:
        beat_s = _time(given, "keep_alive_interval", _TORCH_INTERVAL_S, above_zero=True)
        # With one attempt the lease would be as long as the beat, and any late heartbeat would lose its node.
        key = "keep_alive_max_attempt"
        attempts = whole(_NAMES[key], given.get(key, _TORCH_ATTEMPTS), least=2)
        return beat_s, beat_s * attempts
    lease_s = _time(given, "lease", _DEFAULTS.lease_s, above_zero=True)
    beat_s = _time(given, "beat", usual_beat_s(lease_s), above_zero=True)
    if beat_s >= lease_s:
        raise UsageError(
            f"--rdzv-conf beat is {beat_s:g} s, not less than lease ({lease_s:g} s), so every node would be lost; "
            f"give lease={5 * beat_s:g} or a shorter beat"
        )
    return beat_s, lease_s


def _survivor(given: Conf) -> Survivor | None:
    if "survivor" not in given:
        return None
    try:
        return Survivor(str(given["survivor"]).strip().lower())
    except ValueError:
        choices = ", ".join(each.value for each in Survivor)
        raise UsageError(f"--rdzv-conf survivor is {given['survivor']!r}; give one of {choices}") from None


def _waits(given: Conf, static: bool) -> tuple[float, float]:
    """How long to wait for the minimum of nodes, and for the store, in seconds. Whatever the store, the second is no
    longer than the first: who waits that long for the store cannot join in time."""
    timeout_s = _time(given, "timeout", STATIC_TIMEOUT_S, above_zero=True)
    join_s = _time(given, "join_timeout", timeout_s if static else _DEFAULTS.join_timeout_s, above_zero=True)
    connect_s = _time(given, "read_timeout", timeout_s if static else _DEFAULTS.connect_timeout_s, above_zero=True)
    return join_s, min(join_s, connect_s)


def _last_call(given: Conf) -> tuple[float, float]:
    """The longest last call, and the quiet time that ends it, in seconds."""
    last_call_s = _time(given, "last_call_timeout", _DEFAULTS.last_call_timeout_s)
    key = "last_call_quiet" if "last_call_quiet" in given else "quiet"
    quiet_s = _time(given, key, _DEFAULTS.quiet_s)
    if quiet_s > last_call_s and "last_call_timeout" not in given:
        raise UsageError(
            f"--rdzv-conf {key} is {quiet_s:g} s, longer than last_call_timeout ({last_call_s:g} s); "
            f"give last_call_timeout={quiet_s:g} as well"
        )
    return last_call_s, min(quiet_s, last_call_s)


def _without_effect(given: Conf, static: bool) -> list[str]:
    """A warning for each key that is given and has no effect. Raises UsageError if the value is no time."""
    unused = ["close_timeout", "heartbeat_timeout"]
    if not static:
        unused.append("timeout")
    for key in unused:
        _time(given, key, 1.0)
    return [f"--rdzv-conf {key}={given[key]} has no effect here" for key in unused if key in given]
