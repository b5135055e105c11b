"""Error files, those that workers write and the one that the agent writes, and the failure summary.

Format and layout are torchrun's (torch 2.13, `torch.distributed.elastic.multiprocessing.errors`), since schedulers and
log scrapers read them. A worker's file may contain anything: nothing here raises because of what is in it.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping, Sequence

from ...proto.frozen import dataclass
from ...rendezvous.failures import WorkerFailure
from ...rendezvous.text import shorten
from .classify import classify_exit, error_excerpt, signal_name

SIZE_MAX = 1 << 20
"""Bytes of an error file that are read; a larger one is not parsed."""
MESSAGE_MAX = 1000
"""Characters of an error's first line; it is part of the node's record."""
TIMESTAMP_MAX = 253402300799
"""The end of the year 9999, in seconds since 1970: the largest that `time` can format."""
STDERR_LINES = 10
"""Last lines of stderr that are shown of a worker without a traceback."""
REASON_MAX = 200
"""Characters of the reason why a file cannot be parsed."""
_HINT = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
_STARTUP = "  stage     : start-up\n"
"""A line that torchrun's block does not have."""
_WIDTH_MAX = 60


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """The content of a worker's error file."""

    message: str = ""
    """First line of the error, printable, at most MESSAGE_MAX characters; empty if there is none."""
    traceback: str = ""
    """Its call stack, else its whole message; empty if there is neither."""
    timestamp: int | None = None
    """Time of the error on the worker's clock, in seconds since 1970; None if the file has none."""
    raw: dict[str, object] | None = None
    """The JSON object as found; None if the file has none."""
    trouble: str = ""
    """What is wrong with the file, in one line with its path; empty if nothing is, or no path was given."""
    found: bool = False
    """Whether there is a file, well-formed or not."""


def read_error_file(path: str) -> ErrorReport:
    """Read a worker's error file. Never raises: `trouble` says what is wrong with it.

    Two forms are understood: `{"message": {"message": str, "extraInfo": {"py_callstack": str, "timestamp": str}}}`,
    which `@record` writes, and `{"message": str, "timestamp": int}`. An empty `path` gives an empty report.
    """
    if not path:
        return ErrorReport()
    try:
        data = _read_bytes(path)
    except FileNotFoundError:
        return ErrorReport(trouble=f"error file {path}: not found; decorate the worker's main function with @record")
    except OSError as error:
        return ErrorReport(trouble=f"error file {path}: {error.strerror or error}", found=True)
    if len(data) > SIZE_MAX:
        return ErrorReport(trouble=f"error file {path}: larger than {SIZE_MAX} bytes, not read", found=True)
    if not data.strip():
        return ErrorReport(trouble=f"error file {path}: empty; the worker exited before it had written it", found=True)
    import json

    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        why = shorten(" ".join(str(error).split()), REASON_MAX)
        return ErrorReport(trouble=f"error file {path}: not JSON, or cut short ({why})", found=True)
    if not isinstance(raw, dict):
        return ErrorReport(trouble=f"error file {path}: a JSON {type(raw).__name__}, not an object", found=True)
    return _parse(path, raw)


def failure_of(
    node: str,
    host: str,
    rank: int,
    local_rank: int,
    pid: int,
    exit_code: int,
    error_file: str,
    stderr: str | None = None,
    *,
    stopped_by: int = 0,
    suspended: bool = False,
) -> tuple[WorkerFailure, ErrorReport]:
    """Describe a worker's exit, with the content of its error file if there is one. Never raises.

    `exit_code` as `subprocess` has it. `node`: the node's name for people. `stderr`: the worker's last lines; None if
    they are not kept. `stopped_by`, `suspended`: as `classify_exit`. The time is that of the error file, else now.
    """
    report = read_error_file(error_file)
    text = report.traceback or stderr or ""
    readable = report.found or stderr is not None
    classified = classify_exit(exit_code, stopped_by, text, readable=readable, suspended=suspended)
    moment = time.localtime(time.time() if report.timestamp is None else report.timestamp)
    failure = WorkerFailure(
        node=node,
        host=host,
        rank=rank,
        local_rank=local_rank,
        pid=pid,
        exit_code=exit_code,
        message=report.message,
        error_file=error_file if report.found else "",
        at=time.strftime("%Y-%m-%d_%H:%M:%S", moment),
        stopped_by=stopped_by,
        sign=classified.sign,
        sign_because=_first_line(classified.because),
        suspects=classified.suspects,
        said=_encodable(report.traceback or error_excerpt(stderr or "", STDERR_LINES) or report.trouble * report.found),
    )
    return failure, report


def summary(title: str, root: WorkerFailure, others: Sequence[WorkerFailure] = ()) -> str:
    """The block that torchrun prints when a job fails; begins with a newline, ends without one.

    `root`: the job's cause. `others`: the other failed workers; if the root is among them it is left out there. The
    block is the same on every node.
    """
    heading = f"{title} FAILED"
    first = _entry(0, root)
    rest = [failure for failure in others if failure.identity != root.identity]
    entries = [_entry(index, failure) for index, failure in enumerate(rest, start=1)]
    lines = [heading, *(line for entry in (first, *entries) for line in entry.split("\n"))]
    width = min(_WIDTH_MAX, max(map(len, lines)))
    border, section = "=" * width, "-" * width
    listed = "\n".join(entries or ["  <NO_OTHER_FAILURES>"])
    return (
        f"\n{border}\n{heading}\n{section}\nFailures:\n{listed}\n{section}\n"
        f"Root Cause (first observed failure):\n{first}\n{border}"
    )


def write_error_file(path: str, failure: WorkerFailure, report: ErrorReport | None) -> str:
    """Write the agent's own error file: that of the root cause's worker, with its exit code as `errorCode`.

    If the worker wrote no usable file, or ran on another node, the content is made from `failure`. As in torch, a
    message that is a plain string is copied without the code. Returns "" or, in one line, why writing failed.
    """
    raw = report.raw if report else None
    message = raw.get("message") if raw else None
    if raw and isinstance(message, dict):
        content = raw | {"message": message | {"errorCode": failure.exit_code}}
    elif raw and isinstance(message, str):
        content = raw
    else:
        timestamp = int(time.time()) if report is None or report.timestamp is None else report.timestamp
        content = _content(str(failure), _error_text(failure), timestamp, failure.exit_code)
    return _write_json(path, content)


def write_agent_error(path: str, text: str, timestamp: int, exit_code: int = 0) -> str:
    """Write the agent's own error file for an error that no worker caused, in the format of `@record`.

    `text`: the exception, `ValueError: boom`, or a traceback that ends so. `timestamp`: seconds since 1970. Returns ""
    or, in one line, why writing failed.
    """
    lines = text.strip().splitlines()
    return _write_json(path, _content(lines[-1] if lines else "", text, timestamp, exit_code))


def _read_bytes(path: str) -> bytes:
    # O_NONBLOCK: a FIFO in the file's place must not block the agent.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("not a regular file")
        return file.read(SIZE_MAX + 1)


def _parse(path: str, raw: dict[str, object]) -> ErrorReport:
    message = raw.get("message")
    wrong = []
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        if not isinstance(extra, dict):
            wrong.append("no extraInfo object")
            extra = {}
        text, stack, moment = message.get("message"), extra.get("py_callstack"), extra.get("timestamp")
    else:
        text, stack, moment = message, None, raw.get("timestamp")
    if not isinstance(text, str):
        wrong.append("no message")
        text = ""
    if not isinstance(stack, str):
        stack = text
    timestamp = _timestamp(moment)
    if timestamp is None:
        wrong.append("no timestamp")
    trouble = f"error file {path}: {', '.join(wrong)}" if wrong else ""
    return ErrorReport(_first_line(text or stack), _encodable(stack), timestamp, raw, trouble, found=True)


def _timestamp(value: object) -> int | None:
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number <= TIMESTAMP_MAX else None


def _first_line(text: str) -> str:
    line = next((line for line in text.splitlines() if line.strip()), "")
    line = shorten(line, MESSAGE_MAX)
    # It goes to consoles and into records: no escape sequences, no lone surrogates.
    return "".join(letter if letter.isprintable() else " " if letter == "\t" else "?" for letter in line)


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()


def _error_text(failure: WorkerFailure) -> str:
    """What the summary shows as the traceback."""
    text = failure.said or failure.message
    if failure.exit_code == 0:
        return failure.sign_because
    if failure.exit_code < 0 and not failure.error_file:
        name = signal_name(-failure.exit_code) or "<N/A>"
        killed = f"Signal {-failure.exit_code} ({name}) received by PID {failure.pid}"
        return "\n".join(filter(None, (killed, failure.note, text)))
    return "\n".join(filter(None, (text, failure.note))) or _HINT


def _entry(index: int, failure: WorkerFailure) -> str:
    name = signal_name(-failure.exit_code) if failure.exit_code < 0 else ""
    text = _error_text(failure).replace("\n", "\n  ")
    return (
        f"[{index}]:\n"
        f"  time      : {failure.at}\n"
        f"  host      : {failure.host}\n"
        f"  rank      : {failure.rank} (local_rank: {failure.local_rank})\n"
        f"  exitcode  : {failure.exit_code} (pid: {failure.pid}) {f' ({name})' if name else ''}\n"
        f"  error_file: {failure.error_file or '<N/A>'}\n"
        f"{_STARTUP if failure.startup else ''}"
        f"  traceback : {text}"
    )


def _content(message: str, stack: str, timestamp: int, exit_code: int) -> dict[str, object]:
    content: dict[str, object] = {
        "message": message,
        "extraInfo": {"py_callstack": stack, "timestamp": str(timestamp)},
    }
    return {"message": content | {"errorCode": exit_code} if exit_code else content}


def _write_json(path: str, content: dict[str, object]) -> str:
    try:
        write_json(path, content)
    except OSError as error:
        return f"cannot write error file {path}: {error.strerror or error}; check TORCHELASTIC_ERROR_FILE"
    return ""


def write_json(path: str, content: Mapping[str, object], indent: int | None = None) -> None:
    """Write the file as a whole: a reader finds the old one or the new one. What is no regular file, such as /dev/null,
    /dev/stdout or a pipe, is written to and stays. Raises OSError."""
    import json

    data = (json.dumps(content, indent=indent) + "\n" * (indent is not None)).encode()
    if _is_special(path):
        with open(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "wb") as file:
            file.write(data)
        return
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        _write_synced(temporary, data, os.O_EXCL)
        os.replace(temporary, path)
    except OSError:
        # A mounted file, such as /dev/termination-log, can be written but not replaced.
        _write_synced(path, data, os.O_TRUNC)
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


def _is_special(path: str) -> bool:
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _write_synced(path: str, data: bytes, flag: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o666), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
