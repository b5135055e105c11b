"""What one worker's end says by itself: that it failed on its own, or only because others were gone. Pure.

    read(exit_code, stopped_by, text) -> Reading(sign, because, suspects)

`SIGNS` lists the sentences by which torch, gloo and NCCL say that the fault is elsewhere. Those of gloo and of the
TCPStore client were taken from workers of torch 2.13 whose peers were killed, stopped, or left; those of NCCL and its
watchdog from ProcessGroupNCCL.cpp of torch 2.1 to 2.8 and NCCL 2.14 to 2.28, as their users reported them.

Of a chain of Python exceptions the first decides: what follows was raised while it was being handled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...rendezvous.failures import Sign

SIGABRT, SIGKILL, SIGTERM = 6, 9, 15
"""As numbers, because what decides imports nothing that acts."""
CRASHES = {4: "SIGILL", 5: "SIGTRAP", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV", 31: "SIGSYS"}
"""Signals that a process brings upon itself; numbers of Linux."""
SUSPECTS_MAX = 8
LAST_LINES = 60
"""Of what a worker without a Python exception wrote, as many lines are looked at: a dump of NCCL's watchdog."""

TRACEBACK = "Traceback (most recent call last):"
JOINERS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
LOG_HEADS = ("[W", "[E", "[I", "[F")
"""How a line of torch's C++ log begins; it is no part of an exception's message."""

SIGNS: tuple[tuple[str, Sign], ...] = (
    # A device that fails makes the watchdog of NCCL speak up as well, so these come first.
    ("CUDA error: ", Sign.OWN),
    ("CUDA out of memory", Sign.OWN),
    ("device-side assert triggered", Sign.OWN),
    ("ncclUnhandledCudaError", Sign.OWN),
    ("ncclInvalidUsage", Sign.OWN),
    ("ncclInvalidArgument", Sign.OWN),
    # It waited for others in vain.
    ("Watchdog caught collective operation timeout", Sign.TIMEOUT),
    ("failed to pass monitoredBarrier", Sign.TIMEOUT),
    ("ms for recv operation to complete", Sign.TIMEOUT),
    ("ms for send operation to complete", Sign.TIMEOUT),
    ("The client socket has timed out after", Sign.TIMEOUT),
    ("clients joined", Sign.TIMEOUT),
    ("wait timeout after", Sign.TIMEOUT),
    ("Socket Timeout", Sign.TIMEOUT),
    # A peer, or the store in the worker of rank 0, went away.
    ("successfully reached monitoredBarrier, but received errors", Sign.PEER),
    ("gloo/transport", Sign.PEER),
    ("gloo::IoException", Sign.PEER),
    ("Gloo connectFullMesh failed", Sign.PEER),
    ("remote process exited or there was a network error", Sign.PEER),
    ("ncclRemoteError", Sign.PEER),
    ("NCCL communicator was aborted on rank", Sign.PEER),
    ("Connection closed by remote peer", Sign.PEER),
    ("Process group watchdog thread terminated", Sign.PEER),
    ("DistNetworkError", Sign.PEER),
    ("DistStoreError", Sign.PEER),
    ("bytes. Connection was likely closed", Sign.PEER),
    # These may come from a peer, or from a server that has nothing to do with the job.
    ("Connection reset by peer", Sign.UNCLEAR),
    ("Connection refused", Sign.UNCLEAR),
    ("Broken pipe", Sign.UNCLEAR),
    ("ncclSystemError", Sign.UNCLEAR),
    ("ncclInternalError", Sign.UNCLEAR),
)
"""The first that is found in the worker's error decides; more particular ones stand before more general ones."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What an end says."""

    sign: Sign
    because: str
    """The evidence, in a few words."""
    suspects: tuple[int, ...] = ()
    """Global ranks that the worker's error names as missing; at most `SUSPECTS_MAX`."""


def read(exit_code: int, stopped_by: int, text: str, *, heard: bool = True, standing: bool = False) -> Reading:
    """Judge one end by itself.

    `exit_code` as `subprocess` has it. `stopped_by`: the last signal that its own agent had sent it, 0 if none. `text`:
    what it said, its error file or the last lines of its stderr; `heard`: whether it could be heard at all. `standing`:
    it did not run (SIGSTOP) when its agent came to stop it.
    """
    if exit_code == 0:
        return Reading(Sign.STOPPED if stopped_by else Sign.LEFT, "exited 0")
    if found := _said(text, exit_code):
        return found
    if stopped_by and exit_code in (-stopped_by, 128 + stopped_by, -SIGKILL):
        if standing:
            return Reading(Sign.STANDING, "stood still, stopped by a signal, when its agent came to stop it")
        return Reading(Sign.STOPPED, f"stopped by its agent with signal {stopped_by}")
    if exit_code < 0:
        return Reading(Sign.OWN, _killed(-exit_code))
    if stopped_by:
        return Reading(Sign.STOPPED, f"exited {exit_code} after its agent had sent it signal {stopped_by}")
    if exit_code == 1 and not heard:
        return Reading(Sign.UNCLEAR, "exit code 1 and no word why: it wrote no error file, and its stderr is not kept")
    if not heard:
        return Reading(Sign.QUIET, f"chose exit code {exit_code}")
    return Reading(Sign.QUIET, f"chose exit code {exit_code}, and says nothing of a peer")


def first_error(text: str) -> str:
    """The message of the exception with which the last chain of Python tracebacks began; empty if there is none."""
    lines = [_bare(line) for line in text.splitlines()]
    start = _chain_start(lines)
    if start < 0:
        return ""
    message: list[str] = []
    for line in lines[start + 1 :]:
        if line.startswith((*JOINERS, TRACEBACK, *LOG_HEADS)):
            break
        if message or (line and not line[0].isspace()):
            message.append(line)
    return "\n".join(message).strip()


def _chain_start(lines: list[str]) -> int:
    """Where the last chain of tracebacks begins; -1 if there is none."""
    starts = [at for at, line in enumerate(lines) if line.startswith(TRACEBACK)]
    start = starts[-1] if starts else -1
    for earlier in reversed(starts[:-1]):
        if not any(line.startswith(JOINERS) for line in lines[earlier:start]):
            break
        start = earlier
    return start


def last_words(text: str, lines_max: int) -> str:
    """The last chain of Python tracebacks in a log, and what follows it; if there is none, the last lines."""
    lines = text.splitlines()
    start = _chain_start([_bare(line) for line in lines])
    return "\n".join(lines[start:] if start >= 0 else lines[-lines_max:]).strip()


def _said(text: str, exit_code: int) -> Reading | None:
    """By what the worker wrote; None if that says nothing."""
    error = first_error(text)
    if error and (exit_code > 0 or exit_code == -SIGABRT):
        for line, sign in SIGNS:
            if line in error:
                return Reading(sign, f"its error says {line.strip()!r}", _suspects(error))
        return Reading(Sign.OWN, f"raised {error.splitlines()[0][:120]}")
    # Without an exception the text is a log, in which anything may be told of; a crash or a kill outweighs it.
    if exit_code > 0 or exit_code == -SIGABRT:
        last = "\n".join(text.splitlines()[-LAST_LINES:])
        for line, sign in SIGNS:
            if sign is not Sign.UNCLEAR and line in last:
                return Reading(sign, f"its last lines say {line.strip()!r}", _suspects(last))
    if error and exit_code < 0:
        # Stopped or killed on its way out, with an exception told already.
        reading = _said(text, 1)
        return reading if reading is not None and -exit_code in (SIGKILL, SIGTERM) else None
    return None


def _killed(signum: int) -> str:
    if signum in CRASHES:
        return f"crashed with {CRASHES[signum]}"
    if signum == SIGABRT:
        return "aborted itself (SIGABRT)"
    return f"was killed by signal {signum}, which its agent had not sent"


def _bare(line: str) -> str:
    """The line without torch's prefix `[rank3]: ` and the `[default0]:` of a log that was tee'd."""
    while line.startswith(("[rank", "[default")) and "]:" in line[:40]:
        line = line[line.index("]:") + 2 :].removeprefix(" ")
    return line


def _suspects(text: str) -> tuple[int, ...]:
    """Ranks in `Rank 1 failed to pass monitoredBarrier` and `Ranks 1, 3 failed to pass monitoredBarrier`
    (torch 2.13, ProcessGroupGloo.cpp)."""
    ranks: list[int] = []
    for line in text.splitlines():
        before, found, _ = line.partition("failed to pass monitoredBarrier")
        if found:
            names = before.rpartition("Rank")[2].lstrip("s")
            ranks += _numbers(names.replace(",", " ").split())
    return tuple(ranks[:SUSPECTS_MAX])


def _numbers(words: Iterable[str]) -> list[int]:
    return [int(word) for word in words if word.isdecimal() and len(word) < 10]
