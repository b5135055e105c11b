"""What the exit of one worker shows by itself: that it failed on its own, or only because others were gone. Pure.

    classify_exit(exit_code, stopped_by, text) -> Classification(sign, because, suspects)

`SIGNS` lists the sentences by which torch, gloo and NCCL say that the fault is elsewhere. Those of gloo and of the
TCPStore client were taken from workers of torch 2.13 whose peers were killed, stopped, or left; those of NCCL and its
watchdog from ProcessGroupNCCL.cpp of torch 2.1 to 2.8 and NCCL 2.14 to 2.28, as their users reported them.

In a chain of Python exceptions the first one decides: the later ones were raised while it was being handled.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

from ...proto.frozen import dataclass
from ...rendezvous.failures import Sign
from ...rendezvous.text import shorten

CRASHES = {signal.SIGILL, signal.SIGTRAP, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGSYS}
"""Signals that a process causes itself."""
SUSPECTS_MAX = 8
LAST_LINES = 60
"""How many of the last lines are searched where a worker wrote no Python exception: enough for a dump of NCCL's
watchdog."""
EXCEPTION_MAX = 120
"""Characters of an exception's first line that go into a reason."""

TRACEBACK = "Traceback (most recent call last):"
JOINERS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
TOP_LEVEL = ", in <module>"
"""How the line of a frame ends that is a module's own code."""
RUNNERS = ("runpy.py", "<frozen runpy>", "in_worker/run_path.py")
"""Files that run a script: their frames stand before its own."""
SYNTAX_ERRORS = ("SyntaxError: ", "IndentationError: ", "TabError: ")
IMPORT_ERRORS = ("ImportError: ", "ModuleNotFoundError: ", *SYNTAX_ERRORS)
LOG_HEADS = ("[W", "[E", "[I", "[F")
"""How a line of torch's C++ log begins; it is no part of an exception's message."""
BEHIND_ERRORS = (*LOG_HEADS, *JOINERS, "frame #", "Exception raised from")
"""How lines begin that follow a message though the worker did nothing any more: those above, and C++'s frames."""
WENT_ON = 5
"""Other lines behind an exception's first one of which a message mostly has fewer, and a log that went on more."""

SIGNS: tuple[tuple[str, Sign], ...] = (
    # When a device fails, NCCL's watchdog reports a timeout as well, so these come first.
    ("CUDA error: ", Sign.OWN),
    ("CUDA out of memory", Sign.OWN),
    ("device-side assert triggered", Sign.OWN),
    ("ncclUnhandledCudaError", Sign.OWN),
    ("ncclInvalidUsage", Sign.OWN),
    ("ncclInvalidArgument", Sign.OWN),
    # It waited for its peers until a timeout.
    ("Watchdog caught collective operation timeout", Sign.TIMEOUT),
    ("failed to pass monitoredBarrier", Sign.TIMEOUT),
    ("ms for recv operation to complete", Sign.TIMEOUT),
    ("ms for send operation to complete", Sign.TIMEOUT),
    ("The client socket has timed out after", Sign.TIMEOUT),
    ("clients joined", Sign.TIMEOUT),
    ("wait timeout after", Sign.TIMEOUT),
    ("Socket Timeout", Sign.TIMEOUT),
    # A peer, or the store of the round, went away with its node.
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
    # These may come from a peer, or from a server outside the job.
    ("Connection reset by peer", Sign.UNCLEAR),
    ("Connection refused", Sign.UNCLEAR),
    ("Broken pipe", Sign.UNCLEAR),
    ("ncclSystemError", Sign.UNCLEAR),
    ("ncclInternalError", Sign.UNCLEAR),
)
"""The first that is found in the worker's error decides; more particular ones stand before more general ones."""

MEANINGS = {
    Sign.OWN: "failed on its own",
    Sign.TIMEOUT: "timed out waiting for its peers",
    Sign.PEER: "lost a peer",
    Sign.UNCLEAR: "failed, perhaps because of a peer",
}
"""What a sentence of `SIGNS` means, after `rank 3` or `it`."""


@dataclass(frozen=True, slots=True)
class Classification:
    """What an exit shows by itself."""

    sign: Sign
    because: str
    """The evidence, as one line that goes on after `rank 3` or `it`: `exited 0`."""
    suspects: tuple[int, ...] = ()
    """Global ranks that the worker's error names as missing; at most `SUSPECTS_MAX`."""


def classify_exit(
    exit_code: int, stopped_by: int, text: str, *, readable: bool = True, suspended: bool = False
) -> Classification:
    """Classify one exit by itself.

    `exit_code` as `subprocess` has it. `stopped_by`: the last signal that its own agent had sent it, 0 if none. `text`:
    its error file or the last lines of its stderr; `readable`: whether there was either to read. `suspended`: the
    worker did not run (SIGSTOP) when its agent came to stop it.
    """
    if exit_code == 0:
        return Classification(Sign.STOPPED if stopped_by else Sign.LEFT, "exited 0")
    if found := _by_text(text, exit_code):
        return found
    if stopped_by and exit_code in (-stopped_by, 128 + stopped_by, -signal.SIGKILL):
        if suspended:
            because = "was suspended (by SIGSTOP or a debugger) when its agent came to stop it"
            return Classification(Sign.STANDING, because)
        return Classification(Sign.STOPPED, f"was stopped by its agent with {_signal(stopped_by)}")
    if exit_code < 0:
        return Classification(Sign.OWN, _killed(-exit_code))
    if stopped_by:
        because = f"exited with code {exit_code} after its agent sent it {_signal(stopped_by)}"
        return Classification(Sign.STOPPED, because)
    if exit_code == 1 and not readable:
        because = "exited with code 1, why is unknown: it wrote no error file, and its stderr is not kept"
        return Classification(Sign.UNCLEAR, because)
    if not readable:
        return Classification(Sign.QUIET, f"exited with code {exit_code}")
    return Classification(Sign.QUIET, f"exited with code {exit_code} and reported no lost peer")


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


def _went_on(text: str) -> bool:
    """Whether the worker wrote so much behind the last traceback that it had handled the exception."""
    lines = [_bare(line) for line in text.splitlines()]
    last = max((at for at, line in enumerate(lines) if line.startswith(TRACEBACK)), default=len(lines))
    # The first that stands at the margin is the exception; a message of several lines may follow it.
    margin = [line for line in lines[last + 1 :] if line and not line[0].isspace()]
    return sum(not line.startswith(BEHIND_ERRORS) for line in margin[1:]) > WENT_ON


def _chain_start(lines: list[str]) -> int:
    """Where the last chain of tracebacks begins; -1 if there is none."""
    starts = [at for at, line in enumerate(lines) if line.startswith(TRACEBACK)]
    start = starts[-1] if starts else -1
    for earlier in reversed(starts[:-1]):
        if not any(line.startswith(JOINERS) for line in lines[earlier:start]):
            break
        start = earlier
    return start


def error_excerpt(text: str, lines_max: int) -> str:
    """The last chain of Python tracebacks in a log and what follows it; without one the last `lines_max` lines."""
    lines = text.splitlines()
    start = _chain_start([_bare(line) for line in lines])
    return "\n".join(lines[start:] if start >= 0 else lines[-lines_max:]).strip()


def died_importing(text: str) -> bool:
    """Whether the error of a worker, in `text`, was raised while its script imported: below the top level of another
    module, or as an error of the import itself, or of the script's syntax."""
    lines = [_bare(line) for line in text.splitlines()]
    start = _chain_start(lines)
    frames = [line.strip() for line in _first_traceback(lines[start + 1 :]) if line.lstrip().startswith('File "')]
    while frames and any(own in frames[0] for own in RUNNERS):
        frames.pop(0)
    if not all(frame.endswith(TOP_LEVEL) for frame in frames[:2]):
        # The last frame of a syntax error is the place of the error, and no call.
        return len(frames) == 1 and _raised(lines[start + 1 :], SYNTAX_ERRORS)
    if len(frames) > 1:
        return True
    return _raised(lines[start + 1 :], IMPORT_ERRORS)


def _first_traceback(lines: list[str]) -> list[str]:
    end = next((at for at, line in enumerate(lines) if line.startswith(JOINERS)), len(lines))
    return lines[:end]


def _raised(lines: list[str], names: tuple[str, ...]) -> bool:
    return any(line.startswith(names) for line in _first_traceback(lines))


def signal_name(signum: int) -> str:
    """`SIGTERM`; empty for a real-time signal, which has only a number."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return ""


def _by_text(text: str, exit_code: int) -> Classification | None:
    """By what the worker wrote; None if that decides nothing."""
    error = first_error(text)
    if exit_code not in (1, -signal.SIGABRT) and _went_on(text):  # what an exception ends has one of these
        error = ""
    if error and (exit_code > 0 or exit_code == -signal.SIGABRT):
        for sentence, sign in SIGNS:
            if sentence in error:
                because = f"{MEANINGS[sign]} (its error contains {sentence.strip()!r})"
                return Classification(sign, because, _suspects(error))
        return Classification(Sign.OWN, f"raised {shorten(error.splitlines()[0], EXCEPTION_MAX)}")
    # Without an exception the text is a log, which may mention errors that were handled; a crash or kill outweighs it.
    if exit_code > 0 or exit_code == -signal.SIGABRT:
        last = "\n".join(text.splitlines()[-LAST_LINES:])
        for sentence, sign in SIGNS:
            if sign is not Sign.UNCLEAR and sentence in last:
                because = f"{MEANINGS[sign]} (its last lines contain {sentence.strip()!r})"
                return Classification(sign, because, _suspects(last))
    if error and exit_code < 0:
        # Stopped or killed on its way out, after it had reported an exception.
        found = _by_text(text, 1)
        return found if found is not None and -exit_code in (signal.SIGKILL, signal.SIGTERM) else None
    return None


def _killed(signum: int) -> str:
    if signum in CRASHES:
        return f"crashed with {signal_name(signum)}"
    if signum == signal.SIGABRT:
        return "aborted (SIGABRT)"
    return f"was killed by {_signal(signum)}, which its agent did not send"


def _signal(signum: int) -> str:
    """`signal 15 (SIGTERM)`."""
    name = signal_name(signum)
    return f"signal {signum} ({name})" if name else f"signal {signum}"


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


def _numbers(texts: Iterable[str]) -> list[int]:
    return [int(text) for text in texts if text.isdecimal() and len(text) < 10]
