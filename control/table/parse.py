"""Reads a table of watches. Every error is one line that names the file, the watch, the key, its value, and what is
allowed."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping

from ...agent.errors import UsageError
from ...proto.frozen import replace
from ..decisions.outbox import SendPace
from ..decisions.watches import Rule
from .kinds import COMMON, DUMPS, INSIDE, INSIDE_PATH, INSIDE_REFERENCE, KINDS, RESTARTS, Kind, Threshold
from .quantities import size_b, time_s
from .watch import Table, Watch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOP = ("job", "notify", "save_switch", "kill_switch", "dumps", "gather", "pause", "watch")
ACTIONS = ("notify", "dump", "save", "stop")
INSIDE_ACTIONS = ("restart", "drain")
"""What only an agent can do."""
OF = ("node", "job")
SIGNALS = ("SIGQUIT", "SIGUSR1", "SIGUSR2")
EVERY_S = 60.0
PROGRESS_S = 1.0
"""As EVERY_S, for the progress of an agent's own workers, which is in memory."""
SHORTEST_S = 0.01
"""The shortest `every`; a reading takes some 20 ms of a processor."""
LONGEST_S = 3650 * 86400.0
"""The longest time that a key takes: waits have a limit, and nobody who writes more means it."""
WINDOWS_S = {"disk": 86400.0, "inodes": 86400.0, "memory": 1800.0, "worker-memory": 1800.0}


def read_table(path: str, *, inside: bool = False) -> Table:
    """The table of a file. Relative paths in it are relative to its own directory. `inside`: an agent runs it, which
    has workers and can restart them. Raises UsageError."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8-sig")  # some editors begin a file with a mark of its encoding
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{path}: cannot be read: {why}; give a file of watches in TOML") from None
    return parse_table(text, path, inside=inside)


def parse_table(text: str, path: str, *, inside: bool = False) -> Table:
    """As `read_table`, for a text whose errors call it `path`."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {' '.join(str(error).split())}") from None
    top = _Keys(path, found, TOP)
    rows = found.get("watch")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{path}: no watches; begin each with a line [[watch]]")
    root = os.path.dirname(os.path.abspath(path))
    table = Table(
        path,
        top.text("job"),
        tuple(_watch(path, root, number, row, inside) for number, row in enumerate(rows, 1)),
        top.texts("notify"),
        _below(root, top.text("save_switch")),
        _below(root, top.text("kill_switch")),
        _below(root, top.text("dumps", "stacks")),
        SendPace(top.time("gather", SendPace.gather_s), top.time("pause", SendPace.pause_s)),
    )
    return replace(table, watches=_distinct(table.watches))


def check_actions(table: Table, *, inside: bool = False) -> None:
    """Raises UsageError where a watch does something for which the file and the flags lack the where. `inside`: an
    agent runs it, on whose console an alarm is shown in any case."""
    for watch in table.watches:
        lacks = {
            "notify": not table.notify and not inside and "notify = [URL] above the first [[watch]], or --notify URL",
            "save": not table.save_switch
            and not inside
            and "save_switch = PATH above the first [[watch]], or --save-switch PATH",
            "stop": not table.kill_switch
            and not inside
            and "kill_switch = PATH above the first [[watch]], or --kill-switch PATH",
        }
        for action in watch.do:
            if lacks.get(action):
                raise UsageError(
                    f"{table.path}: watch {watch.number} ({watch.what}): do = {action!r} needs {lacks[action]}"
                )


class _Keys:
    """The keys of one table, read with errors that say where."""

    def __init__(self, where: str, values: Mapping[str, object], allowed: Iterable[str]) -> None:
        self._where, self._values = where, values
        allowed = sorted(set(allowed))
        for key in values:
            if key not in allowed:
                shown = "..." if meant(key, ["notify"]) else repr(values[key])  # which may hold a secret
                hint = meant(key, allowed)
                raise UsageError(f"{where}: {key} = {shown}: no such key here; {hint}there are {', '.join(allowed)}")

    def wrong(self, key: str, allowed: str) -> UsageError:
        if key in self._values:
            shown = "..." if key == "notify" else repr(self._values[key])  # which may hold a secret
            return UsageError(f"{self._where}: {key} = {shown}: give {allowed}")
        return UsageError(f"{self._where}: {key} is missing: give {allowed}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str, default: str = "") -> str:
        value = self._values.get(key, default)
        if not isinstance(value, str) or (key in self._values and not value.strip()):
            raise self.wrong(key, "a text in quotes")
        return value

    def line(self, key: str) -> str:
        """A text that is shown on a console and in a subject."""
        text = self.text(key)
        if not text.isprintable():
            raise self.wrong(key, "a text of one line, without control characters")
        return text

    def texts(self, key: str) -> tuple[str, ...]:
        """One text or several."""
        value = self._values.get(key, [])
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(each, str) and each.strip() for each in value):
            raise self.wrong(key, "a text in quotes, or several in brackets")
        return tuple(value)

    def time(self, key: str, default: float, least: float = 0.0) -> float:
        if key not in self._values:
            return default
        seconds = time_s(self.text(key))
        if seconds is None or not least <= seconds <= LONGEST_S:
            allowed = f"a time of at least {least:g} s and at most 3650 days"
            raise self.wrong(key, f"{allowed}, such as '60 s', '5 min' or '2 hours'")
        return seconds

    def regex(self, key: str) -> str:
        text = self.text(key)
        try:
            re.compile(text)
        except re.error as error:
            raise self.wrong(key, f"a regular expression; {error}") from None
        return text

    def command(self, key: str) -> tuple[str, ...]:
        """A list of arguments, or one line that is split as a shell would, without one."""
        value = self._values.get(key, ())
        try:
            found = tuple(shlex.split(value)) if isinstance(value, str) else self.texts(key)
        except ValueError as error:
            raise self.wrong(key, f"a command whose quotes are closed; {str(error).lower()}") from None
        if key in self._values and not found:
            raise self.wrong(key, _MEANINGS["command"])
        return found


def meant(word: str, known: Iterable[str]) -> str:
    """A hint in an error, where the word is nearly one of the known ones; else empty."""
    from difflib import get_close_matches  # here: only an error needs it

    near = get_close_matches(word.lower(), list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def _watch(path: str, root: str, number: int, row: Mapping[str, object], inside: bool) -> Watch:
    what = row.get("what")
    if not isinstance(what, str) or what not in KINDS:
        said = f"what = {what!r}" if "what" in row else "what is missing"
        hint = meant(str(what), KINDS) if "what" in row else ""
        raise UsageError(f"{path}: watch {number}: {said}: {hint}give {' or '.join(map(repr, KINDS))}")
    kind = KINDS[what]
    keys = _Keys(
        f"{path}: watch {number} ({what})", row, (*COMMON, *kind.keys, *(["process"] if what in DUMPS else []))
    )
    known = _known_inside(what) if inside else ()
    for key in kind.needs:
        if key not in keys and key not in known:
            raise keys.wrong(key, _MEANINGS[key])
    if kind.one_of and not inside and not any(key in keys for key in kind.one_of):
        raise keys.wrong(kind.one_of[0], f"{' or '.join(kind.one_of)}")
    every_s = keys.time("every", _every_s(kind, what, row), SHORTEST_S)
    watch = Watch(
        number,
        what,
        keys.line("name") or f"{what} {row.get('path') or row.get('job') or row.get('process') or ''}".strip(),
        _threshold(keys, kind),
        every_s,
        Rule(keys.time("for", 0.0), keys.time("again", 0.0)),
        _actions(keys, what, inside),
        path=_below(root, keys.text("path")),
        process=keys.regex("process"),
        job=keys.text("job"),
        store=_store(keys),
        run_id=keys.text("run_id", "none"),
        command=keys.command("command"),
        pattern=_pattern(keys),
        reference=_reference(keys),
        window_s=keys.time("window", WINDOWS_S.get(what, 0.0), every_s),
        limit_b=_size(keys, "limit"),
        least_s=keys.time("least", Watch.least_s),
        most_s=keys.time("most", Watch.most_s),
        whole_job=_of(keys, kind, inside) == "job",
        signal=_signal(keys),
    )
    if "dump" in watch.do and not watch.process and not inside:
        raise keys.wrong("process", "a regular expression that finds the processes whose stacks 'dump' saves")
    return watch


_MEANINGS = {
    "path": "a path, absolute or below the directory of this file",
    "process": "a regular expression that is searched in command lines, such as 'train.py'",
    "command": "a command that prints a percentage, or what is used and the limit",
    "reference": "'ntp://HOST' or an 'http://' or 'https://' address",
}


def _threshold(keys: _Keys, kind: Kind) -> Threshold | None:
    if not kind.forms and not kind.words:
        if "threshold" in keys:
            raise keys.wrong("threshold", "none: a watch of this kind has no threshold")
        return None
    if "threshold" not in keys and not kind.default:
        raise keys.wrong("threshold", kind.allowed())
    found = kind.threshold(keys.text("threshold", kind.default))
    if found is None:
        raise keys.wrong("threshold", kind.allowed())
    return found


def _every_s(kind: Kind, what: str, row: Mapping[str, object]) -> float:
    if what == "hang" and "path" not in row:
        return PROGRESS_S
    return time_s(kind.every) or EVERY_S


def _known_inside(what: str) -> tuple[str, ...]:
    """Keys that an agent can do without."""
    found = [*INSIDE]
    if what in INSIDE_PATH:
        found.append("path")
    if what in INSIDE_REFERENCE:
        found.append("reference")
    return tuple(found)


def _of(keys: _Keys, kind: Kind, inside: bool) -> str:
    """Whom a watch is about: one node of the job runs it, or each."""
    compares = "reference" in kind.needs and "reference" not in keys
    of = keys.text("of", "job" if inside and (kind.whole_job or compares) else "node")
    if of not in OF:
        raise keys.wrong("of", " or ".join(map(repr, OF)))
    return of


def _actions(keys: _Keys, what: str, inside: bool) -> tuple[str, ...]:
    actions = keys.texts("do") if "do" in keys else ("notify",)
    allowed = [action for action in ACTIONS if action != "dump" or what in DUMPS]
    allowed += [each for each in INSIDE_ACTIONS if inside and (each == "drain" or what in RESTARTS)]
    for action in actions:
        command = action.partition(":")[2] if action.startswith("exec:") else ""
        try:
            known = action in allowed or bool(shlex.split(command))
        except ValueError:
            known = False
        if not known:
            raise keys.wrong("do", f"one or several of {', '.join(map(repr, allowed))}, 'exec:COMMAND'")
    return actions


def _pattern(keys: _Keys) -> str:
    pattern = keys.regex("pattern")
    groups = set(re.compile(pattern).groupindex)
    if pattern and not ({"percent"} <= groups or {"used", "limit"} <= groups):
        raise keys.wrong("pattern", "a regular expression with (?P<percent>..), or with (?P<used>..) and (?P<limit>..)")
    return pattern


def _reference(keys: _Keys) -> str:
    reference = keys.text("reference")
    if reference and not re.match(r"(ntp|https?)://[^/\s]", reference):
        raise keys.wrong("reference", _MEANINGS["reference"])
    return reference


def _store(keys: _Keys) -> str:
    store = keys.text("store")
    if store and not re.match(r"(c10d|etcd)://[^/\s]", store):
        raise keys.wrong("store", "'c10d://HOST:PORT', or 'etcd://HOST:PORT,...'")
    return store


def _size(keys: _Keys, key: str) -> float:
    if key not in keys:
        return 0.0
    size = size_b(keys.text(key))
    if not size:
        raise keys.wrong(key, "a size, such as '40 GB'")
    return size


def _signal(keys: _Keys) -> str:
    name = keys.text("signal")
    if name and name not in SIGNALS:
        raise keys.wrong("signal", f"the one that the script gave faulthandler.register: {', '.join(SIGNALS)}")
    return name


def _below(root: str, path: str) -> str:
    return os.path.normpath(os.path.join(root, os.path.expanduser(path))) if path else ""


def _distinct(watches: tuple[Watch, ...]) -> tuple[Watch, ...]:
    """Two watches of one title get their thresholds, and if need be their numbers, into it."""
    titles = [watch.title for watch in watches]
    named = [
        replace(watch, title=f"{watch.title} ({watch.threshold.text})")
        if titles.count(watch.title) > 1 and watch.threshold
        else watch
        for watch in watches
    ]
    titles = [watch.title for watch in named]
    return tuple(
        replace(watch, title=f"{watch.title} #{watch.number}") if titles.count(watch.title) > 1 else watch
        for watch in named
    )
