"""How the values people type are read: numbers, node ranges, redirects, filters, signals, endpoints.

Every function here takes `name`, what to call the value in an error: a flag (`--tee`), a variable (`PET_TEE`), a field
of `LaunchConfig` or a rendezvous key. All raise `UsageError` with one line. Grammars are torch 2.13's
(`torch.distributed.run`, `Std.from_str`, `parse_rendezvous_endpoint`) unless said otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from ...agent.errors import UsageError
from ...agent.spec import Rotation

LONGEST_S = 1e9
"""Longest wait that can be asked for, about 31 years: timers of the system overflow not far beyond."""
MAX_NPROC = 4096
"""Most workers of one node: far above any machine's devices, low enough that a typo does not exhaust its pids."""
LONGEST_PAUSE_S = 60.0
"""Longest pause of a crash loop, where only the shortest is given."""
MAX_COUNT = 1_000_000
"""Most nodes and restarts that can be asked for; a larger number is a typo."""

SMALLEST_LOG = 1024
"""Bytes of a log file that rotates; with less, it would be files for the sake of files."""

_TRUE = frozenset({"1", "true", "t", "yes", "y"})
_FALSE = frozenset({"0", "false", "f", "no", "n"})
_HOST = re.compile(r"[\w.:%-]+")


def suggest(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` if something known is close to `word`, else an empty string."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def whole(name: str, value: str | float, *, least: int = 0, most: int = MAX_COUNT) -> int:
    """A whole number from `least` to `most`."""
    try:
        number = int(value)
    except ValueError:
        raise UsageError(f"{name} is {value!r}, which is not a whole number; give one from {least} to {most}") from None
    if (
        isinstance(value, bool)
        or number != (number if isinstance(value, str) else value)
        or not least <= number <= most
    ):
        raise UsageError(f"{name} is {value!r}, outside {least} to {most}; give a number in that range")
    return number


def seconds(name: str, value: str | float, *, above_zero: bool = False) -> float:
    """A length of time in seconds, from 0 (or above it) to `LONGEST_S`."""
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise UsageError(f"{name} is {value!r}, which is not a number; give it in seconds, such as 30") from None
    # NaN fails every comparison, so it lands here too.
    if not 0 <= number <= LONGEST_S or math.isinf(number):
        raise UsageError(f"{name} is {value!r}, outside 0 to {LONGEST_S:.0f} seconds; give a time in that range")
    if above_zero and number == 0:
        raise UsageError(f"{name} is {value!r}, but must be more than 0 seconds; give a positive number")
    return number


def pauses(name: str, value: str | float | Sequence[float]) -> tuple[float, float]:
    """`MIN[:MAX]` seconds or a pair, with MIN <= MAX; without MAX it is `LONGEST_PAUSE_S`, or MIN if that is more."""
    parts = value.split(":") if isinstance(value, str) else value if isinstance(value, Sequence) else (value,)
    if len(parts) not in (1, 2):
        raise UsageError(f"{name} is {value!r}; give MIN or MIN:MAX seconds, such as 5:300, or 0 for no pauses")
    low = seconds(name, parts[0])
    high = seconds(name, parts[1]) if len(parts) == 2 else max(low, LONGEST_PAUSE_S)
    if low > high:
        raise UsageError(f"{name} is {value!r}, whose MIN is more than its MAX; give MIN:MAX such as 5:300")
    return low, high


def exit_codes(name: str, value: str | Iterable[int]) -> frozenset[int]:
    """Exit codes from 1 to 255, as comma-separated numbers or as integers; nothing, or `none`, means none."""
    given = value.split(",") if isinstance(value, str) else value
    if isinstance(value, str) and value.strip() in ("", "none"):
        given = ()
    return frozenset(whole(name, code, least=1, most=255) for code in given)


def truth(name: str, value: str | float) -> bool:
    """A boolean as torch's rendezvous parameters spell it: 1, true, t, yes, y, or their opposites, in any case."""
    word = str(value).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise UsageError(f"{name} is {value!r}, which is neither true nor false; give true or false")


def node_range(name: str, value: str) -> tuple[int, int]:
    """`N` or `MIN:MAX` nodes, with 1 <= MIN <= MAX."""
    parts = value.split(":")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise UsageError(f"{name} is {value!r}; give a number of nodes such as 2, or MIN:MAX such as 1:4")
    low, high = numbers[0], numbers[-1]
    if not 1 <= low <= high <= MAX_COUNT:
        raise UsageError(f"{name} is {value!r}, but must hold 1 <= MIN <= MAX <= {MAX_COUNT}; correct the range")
    return low, high


def streams(name: str, value: str | int | Mapping[int, int], nproc: int) -> dict[int, int]:
    """Which streams of which local rank: one of 0 (none), 1 (stdout), 2 (stderr), 3 (both) for all ranks, or
    `RANK:0-3,...` or a mapping for some. Unlike torch's, local ranks may have more than one digit. Returns a value for
    each of the `nproc` ranks, or for those named."""
    how = "give 0, 1 (stdout), 2 (stderr) or 3 (both) for all local ranks, or such as 0:1,1:3 for some"
    if isinstance(value, Mapping):
        named = list(value.items())
    else:
        text = str(value).strip()
        if re.fullmatch(r"[0-3]", text):
            return dict.fromkeys(range(nproc), int(text))
        if not re.fullmatch(r"\d{1,4}:[0-3](,\d{1,4}:[0-3])*", text, re.ASCII):
            raise UsageError(f"{name} is {value!r}; {how}")
        named = [(int(rank), int(bits)) for rank, _, bits in (item.partition(":") for item in text.split(","))]
    chosen: dict[int, int] = {}
    for rank, bits in named:
        if rank < 0 or bits not in (0, 1, 2, 3):
            raise UsageError(f"{name} gives local rank {rank!r} the value {bits!r}; {how}")
        if chosen.setdefault(rank, int(bits)) != bits:
            raise UsageError(f"{name} is {value!r}, which names local rank {rank} twice; name it once")
    return chosen


def rotation(name: str, value: str | Rotation) -> Rotation | None:
    """`SIZE` or `SIZE:KEEP`; SIZE in bytes, or with K, M or G (1024, its square, its cube), at least 1 KiB; KEEP is how
    many full files stay, all of them without it. An empty string is None."""
    if not value or isinstance(value, Rotation):
        return value or None
    found = re.fullmatch(r"(\d{1,18})([KMG]?)(?:i?B)?(?::(\d{1,9}))?", value.strip(), re.ASCII | re.IGNORECASE)
    limit = int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2].upper()] if found else 0
    if found is None or limit < SMALLEST_LOG:
        how = f"give a size of {SMALLEST_LOG} or more, and how many full files to keep if not all, such as 100M:5"
        raise UsageError(f"{name} is {value!r}; {how}")
    return Rotation(limit, None if found[3] is None else int(found[3]))


def local_ranks(name: str, value: str | Iterable[int]) -> frozenset[int]:
    """Local ranks, as comma-separated whole numbers or as integers; an empty string means all, returned as no rank."""
    given = value.split(",") if isinstance(value, str) and value else value or ()
    try:
        ranks = frozenset(int(rank) for rank in given)
    except ValueError:
        ranks = frozenset({-1})
    if any(rank < 0 for rank in ranks):
        raise UsageError(f"{name} is {value!r}; give local ranks separated by commas, such as 0,1,2")
    return ranks


def substrings(value: str | Iterable[str]) -> tuple[str, ...]:
    """Comma-separated substrings; two commas stand for one. Empty ones are left out, as they would match every line."""
    if isinstance(value, str):
        value = (part.replace("\0", ",") for part in value.replace(",,", "\0").split(","))
    return tuple(part for part in value if part)


def modules(name: str, value: str | Iterable[str]) -> tuple[str, ...]:
    """Names of modules, comma-separated or one by one, each once; `auto` stands alone."""
    given = value.split(",") if isinstance(value, str) else value
    names = tuple(dict.fromkeys(word.strip() for word in given if word.strip()))
    for each in names:
        if not all(part.isidentifier() for part in each.split(".")):
            raise UsageError(f"{name} names {each!r}, which is no module; give names as in import, such as torch,numpy")
    if "auto" in names and len(names) > 1:
        raise UsageError(f"{name} is {','.join(names)!r}, but auto finds out by itself; give auto, or the modules")
    return names


def signals(name: str, value: str | Iterable[int]) -> tuple[int, ...]:
    """The signals that stop the job, each once, in the order given; see `_signal_numbers`."""
    import signal

    numbers = _signal_numbers(name, value, "SIGTERM,SIGINT")
    for word, number in numbers:
        if number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            raise UsageError(f"{name} names {word!r}, which no program can treat as a request to stop; leave it out")
    if not numbers:
        raise UsageError(f"{name} is empty, so nothing could stop the job; name at least SIGTERM")
    return tuple(dict.fromkeys(number for _, number in numbers))


def forwarded(name: str, value: str | Iterable[int], stops: Iterable[int]) -> tuple[int, ...]:
    """The signals to pass on to the workers, each once, in the order given; none if empty. `stops`: those that stop
    the job, which cannot do both. See `_signal_numbers`."""
    import signal

    fatal = ("KILL", "STOP", "CHLD", "SEGV", "BUS", "FPE", "ILL", "ABRT", "TRAP", "SYS", "PIPE")
    refused = {getattr(signal, f"SIG{each}") for each in fatal}
    numbers = _signal_numbers(name, value, "USR1,USR2")
    for word, number in numbers:
        if number in refused:
            raise UsageError(f"{name} names {word!r}, which means something to the agent itself; leave it out")
        if number in tuple(stops):
            raise UsageError(
                f"{name} names {word!r}, which stops the job (signals_to_handle); take it out of one of the two"
            )
    return tuple(dict.fromkeys(number for _, number in numbers))


def _signal_numbers(name: str, value: str | Iterable[int], such_as: str) -> list[tuple[str | int, int]]:
    """Signals as typed and as numbers. They may be typed by name, with or without SIG, in any case, or by number."""
    import signal

    known = {member.name: int(member) for member in signal.Signals}
    numbers: list[tuple[str | int, int]] = []
    for item in value.split(",") if isinstance(value, str) and value.strip() else value or ():
        word = item.strip() if isinstance(item, str) else item
        like = str(word).upper().removeprefix("SIG")
        number = int(like) if like.isdecimal() else known.get(f"SIG{like}")
        if number is None or number not in known.values():
            hint = suggest(f"SIG{like}", known)
            raise UsageError(f"{name} names {word!r}, which is no signal here; give such as {such_as}{hint}")
        numbers.append((word, number))
    return numbers


def endpoint(name: str, value: str, default_port: int | None) -> tuple[str, int]:
    """`HOST[:PORT]`, where an IPv6 address with a port stands in brackets. Without a default, the port is required."""
    text = value.strip()
    host, port = text, ""
    if not (text.startswith("[") and text.endswith("]")):
        host, colon, port = text.rpartition(":")
        if not colon:
            host, port = text, ""
        elif not port:
            raise UsageError(f"{name} is {value!r}, which ends in a colon; give HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not _HOST.fullmatch(host):
        raise UsageError(f"{name} is {value!r}; give HOST:PORT, or [ADDRESS]:PORT for IPv6")
    if port:
        if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
            raise UsageError(f"{name} is {value!r}, whose port {port!r} is no number from 0 to 65535; give HOST:PORT")
        return host, int(port)
    if default_port is None:
        raise UsageError(f"{name} is {value!r}, which names no port; give HOST:PORT")
    return host, default_port


def joined(host: str, port: int) -> str:
    """`HOST:PORT`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
