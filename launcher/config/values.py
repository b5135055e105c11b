"""Readers of values that users type: numbers, node ranges, redirects, filters, signals, endpoints.

The argument `name` of each function is what an error calls the value: a flag (`--tee`), a variable (`PET_TEE`), a field
of `LaunchConfig` or a rendezvous key. All raise `UsageError` with one line. Grammars are torch 2.13's
(`torch.distributed.run`, `Std.from_str`, `parse_rendezvous_endpoint`), except where a docstring has another.
"""

from __future__ import annotations

# The C module: importing `socket` would lengthen the agent's start-up.
import _socket
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from ...agent.errors import UsageError
from ...agent.lifecycle.stop_ladder import LEFTOVER_S, Leftovers
from ...agent.spec import LogSpec, Rotation

LONGEST_S = 1e9
"""Longest time that can be set, about 31 years: the system's timers overflow not far beyond."""
MAX_NPROC = 4096
"""Most workers of one node: far more than any host has devices, and few enough that a typo does not use up its pids."""
LONGEST_PAUSE_S = 60.0
"""Longest pause of a crash loop, if only the shortest is given."""
MAX_COUNT = 1_000_000
"""Most nodes and restarts that can be set; a larger number is a typo."""

SMALLEST_LOG = 1024
"""Smallest size, in bytes, at which a log file is put aside; a smaller one would make many files of a few lines."""

_TRUE = frozenset({"1", "true", "t", "yes", "y"})
_FALSE = frozenset({"0", "false", "f", "no", "n"})
_HOST = re.compile(r"[\w.:%-]+")


def suggest(typed: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` if one of `known` is close to `typed`, else an empty string."""
    import difflib

    close = difflib.get_close_matches(typed, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def text(name: str, value: str) -> str:
    """Any text, as it is."""
    return value


def whole(name: str, value: str | float, *, least: int = 0, most: int = MAX_COUNT) -> int:
    """A whole number from `least` to `most`."""
    try:
        number = int(value)
    except (ValueError, TypeError, OverflowError):
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
    number = _time(name, value, "seconds", LONGEST_S, 30)
    if above_zero and number == 0:
        raise UsageError(f"{name} is {value!r}, but must be more than 0 seconds; give a positive number")
    return number


def minutes(name: str, value: str | float) -> float:
    """A length of time in minutes, from 0 to `LONGEST_S`."""
    return _time(name, value, "minutes", LONGEST_S / 60, 230)


def _time(name: str, value: str | float, unit: str, most: float, example: int) -> float:
    try:
        number = float(value)
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"{name} is {value!r}, which is not a number; give it in {unit}, such as {example}") from None
    # NaN fails every comparison, so it is refused here too.
    if not 0 <= number <= most:
        raise UsageError(f"{name} is {value!r}, outside 0 to {most:.0f} {unit}; give a time in that range")
    return number


def pauses(name: str, value: str | float | Sequence[float]) -> tuple[float, float]:
    """`MIN[:MAX]` seconds or a pair, with MIN <= MAX; MAX is by default `LONGEST_PAUSE_S`, or MIN if that is more."""
    parts = value.split(":") if isinstance(value, str) else value if isinstance(value, Sequence) else (value,)
    if len(parts) not in (1, 2) or "" in parts:
        raise UsageError(f"{name} is {value!r}; give MIN or MIN:MAX seconds, for example 5:300, or 0 for no pauses")
    low = seconds(name, parts[0])
    high = seconds(name, parts[1]) if len(parts) == 2 else max(low, LONGEST_PAUSE_S)
    if low > high:
        raise UsageError(f"{name} is {value!r}, whose MIN is more than its MAX; give MIN:MAX, for example 5:300")
    return low, high


def exit_codes(name: str, value: str | Iterable[int]) -> frozenset[int]:
    """Exit codes from 1 to 255, as comma-separated numbers or as integers; an empty value or `none` is none of them."""
    given = value.split(",") if isinstance(value, str) else value
    if isinstance(value, str) and value.strip() in ("", "none"):
        given = ()
    return frozenset(whole(name, code, least=1, most=255) for code in given)


def leftovers(name: str, value: str) -> tuple[Leftovers, float]:
    """`stop`, `stop:SECONDS`, `wait` or `keep`; the time is `LEFTOVER_S` if none is given."""
    what, colon, time_s = value.partition(":")
    if what not in {each.value for each in Leftovers} or (colon and (what != Leftovers.STOP.value or not time_s)):
        raise UsageError(f"{name} is {value!r}; give stop, stop:SECONDS, wait or keep")
    return Leftovers(what), seconds(name, time_s) if colon else LEFTOVER_S


def truth(name: str, value: str | float) -> bool:
    """A boolean in one of torch's spellings: 1, true, t, yes, y or 0, false, f, no, n, in any case."""
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
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
        raise UsageError(f"{name} is {value!r}; give a number of nodes, for example 2, or MIN:MAX, for example 1:4")
    low, high = numbers[0], numbers[-1]
    if not 1 <= low <= high <= MAX_COUNT:
        raise UsageError(f"{name} is {value!r}, but it must be 1 <= MIN <= MAX <= {MAX_COUNT}; correct the range")
    return low, high


def streams(name: str, value: str | int | Mapping[int, int], nproc: int) -> dict[int, int]:
    """Streams by local rank: 0 (none), 1 (stdout), 2 (stderr) or 3 (both) for all ranks, or `RANK:0-3,...` or a mapping
    for some. Unlike in torch's grammar, local ranks may have more than one digit. Returns a value for each of the
    `nproc` ranks, or for those named."""
    how = "give 0, 1 (stdout), 2 (stderr) or 3 (both) for all local ranks, or, for example, 0:1,1:3 for some"
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
        if not hasattr(rank, "__index__") or rank < 0 or bits not in (0, 1, 2, 3):
            raise UsageError(f"{name} gives local rank {rank!r} the value {bits!r}; {how}")
        if chosen.setdefault(rank, int(bits)) != bits:
            raise UsageError(f"{name} is {value!r}, which has two values for local rank {rank}; give one")
    return chosen


def rotation(name: str, value: str | Rotation) -> Rotation | None:
    """`SIZE` or `SIZE:KEEP`. SIZE is in bytes, or with K, M or G (1024, its square, its cube), at least 1 KiB; KEEP is
    how many full files are kept, by default all. An empty string gives None."""
    if not value or isinstance(value, Rotation):
        return value or None
    found = re.fullmatch(r"(\d{1,18})([KMG]?)(?:i?B)?(?::(\d{1,9}))?", value.strip(), re.ASCII | re.IGNORECASE)
    limit = int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2].upper()] if found else 0
    if found is None or limit < SMALLEST_LOG:
        how = f"give a size of {SMALLEST_LOG} or more, and how many full files to keep if not all, for example 100M:5"
        raise UsageError(f"{name} is {value!r}; {how}")
    return Rotation(limit, None if found[3] is None else int(found[3]))


def local_ranks(name: str, value: str | Iterable[int]) -> frozenset[int]:
    """Local ranks, as comma-separated whole numbers or as integers. An empty string means all ranks, and gives an empty
    set."""
    given = value.split(",") if isinstance(value, str) and value else value or ()
    try:
        ranks = frozenset(int(rank) for rank in given)
    except (ValueError, TypeError):
        ranks = frozenset({-1})
    if any(rank < 0 for rank in ranks):
        raise UsageError(f"{name} is {value!r}; give local ranks separated by commas, for example 0,1,2")
    return ranks


def nothing_shown(value: str | Iterable[int], nproc: int) -> str:
    """A warning where a filter of local ranks shows none of the `nproc` that there are; else empty."""
    shown = local_ranks("local_ranks_filter", value)
    if not shown or min(shown) < nproc:
        return ""
    here = f"ranks 0 to {nproc - 1} are" if nproc > 1 else "rank 0 is"
    return f"--local-ranks-filter names {', '.join(map(str, sorted(shown)))}, but local {here} here: no output is shown"


def no_files(logs: LogSpec) -> str:
    """A warning where streams are to go to files, and there are none; else empty."""
    if logs.base_dir != os.devnull or logs.reify is not None or not any((*logs.redirects.values(), *logs.tee.values())):
        return ""
    return "--redirects and --tee have no effect with --log-dir /dev/null: output goes to the console as it is"


def substrings(value: str | Iterable[str]) -> tuple[str, ...]:
    """Comma-separated substrings; two commas stand for a comma in one of them. Empty ones are left out, because every
    line has them."""
    if isinstance(value, str):
        value = (part.replace("\0", ",") for part in value.replace(",,", "\0").split(","))
    return tuple(part for part in value if part)


def modules(name: str, value: str | Iterable[str]) -> tuple[str, ...]:
    """Names of modules, comma-separated or as an iterable, without repeats; or `auto` alone."""
    given = value.split(",") if isinstance(value, str) else value
    names = tuple(dict.fromkeys(module.strip() for module in given if module.strip()))
    for each in names:
        if not all(part.isidentifier() for part in each.split(".")):
            raise UsageError(f"{name} has {each!r}, which is no name of a module; give, for example, torch,numpy")
    if "auto" in names and len(names) > 1:
        raise UsageError(f"{name} is {','.join(names)!r}, but auto finds the modules itself; give auto, or the modules")
    return names


def signals(name: str, value: str | Iterable[int]) -> tuple[int, ...]:
    """The signals that stop the job, without repeats, in the order given; spelled as for `_signal_numbers`."""
    import signal

    numbers = _signal_numbers(name, value, "SIGTERM,SIGINT")
    for typed, number in numbers:
        if number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            raise UsageError(f"{name} has {typed!r}, which no program can handle as a request to stop; leave it out")
    if not numbers:
        raise UsageError(f"{name} is empty, so that no signal would stop the job; give at least SIGTERM")
    return tuple(dict.fromkeys(number for _, number in numbers))


def forwarded(name: str, value: str | Iterable[int], stops: Iterable[int]) -> tuple[int, ...]:
    """The signals to pass on to the workers, without repeats, in the order given; may be empty. `stops`: the signals
    that stop the job, which cannot be passed on. Spelled as for `_signal_numbers`."""
    import signal

    fatal = ("KILL", "STOP", "CHLD", "SEGV", "BUS", "FPE", "ILL", "ABRT", "TRAP", "SYS", "PIPE")
    refused = {getattr(signal, f"SIG{each}") for each in fatal}
    numbers = _signal_numbers(name, value, "USR1,USR2")
    for typed, number in numbers:
        if number in refused:
            raise UsageError(f"{name} has {typed!r}, which the agent cannot pass on or needs itself; leave it out")
        if number in tuple(stops):
            raise UsageError(
                f"{name} has {typed!r}, which stops the job (signals_to_handle); take it out of one of the two"
            )
    return tuple(dict.fromkeys(number for _, number in numbers))


def random_id() -> str:
    """What uuid.uuid4() gives, without its module, which takes long to import."""
    import os

    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _signal_numbers(name: str, value: str | Iterable[int], example: str) -> list[tuple[str | int, int]]:
    """Each signal as typed and as a number. It may be typed as a name, with or without SIG, in any case, or as a
    number."""
    import signal

    known = {member.name: int(member) for member in signal.Signals}
    numbers: list[tuple[str | int, int]] = []
    for item in value.split(",") if isinstance(value, str) and value.strip() else value or ():
        typed = item.strip() if isinstance(item, str) else item
        short = str(typed).upper().removeprefix("SIG")
        number = int(short) if short.isdecimal() and len(short) < 10 else known.get(f"SIG{short}")
        if number is None or number not in known.values():
            hint = suggest(f"SIG{short}", known)
            raise UsageError(
                f"{name} has {typed!r}, which is no signal of this system; give, for example, {example}{hint}"
            )
        numbers.append((typed, number))
    return numbers


def endpoint(name: str, value: str, default_port: int | None) -> tuple[str, int]:
    """`HOST[:PORT]`, in which an IPv6 address with a port is in brackets. If `default_port` is None, the port is
    required."""
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
    if not _HOST.fullmatch(host) or (":" in host and not is_ipv6(host)):
        raise UsageError(f"{name} is {value!r}; give HOST:PORT, or [ADDRESS]:PORT for IPv6")
    if port:
        if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
            raise UsageError(f"{name} is {value!r}, whose port {port!r} is no number from 0 to 65535; give HOST:PORT")
        return host, int(port)
    if default_port is None:
        raise UsageError(f"{name} is {value!r}, which has no port; give HOST:PORT")
    return host, default_port


def is_ipv6(host: str) -> bool:
    """Whether this is an IPv6 address, such as `::1` or `fe80::1%eth0`."""
    try:
        _socket.inet_pton(_socket.AF_INET6, host.partition("%")[0])
    except (OSError, ValueError):
        return False
    return True


def joined(host: str, port: int) -> str:
    """`HOST:PORT`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
