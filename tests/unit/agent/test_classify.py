"""What one exit shows by itself, as torch, gloo and NCCL report it."""

from __future__ import annotations

import pytest

from elastic_agent.agent.failures.classify import (
    EXCEPTION_MAX,
    SIGNS,
    classify_exit,
    died_importing,
    error_excerpt,
    first_error,
)
from elastic_agent.rendezvous.failures import Sign

FRAMES = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    step()\n'
CLOSED = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:5508. This is typically caused by a remote worker crashing."
)
WAITED = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for "
    "recv operation to complete"
)
MONITORED = (
    f"RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms\n Original exception: \n{WAITED}"
)
REACHED = (
    "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
    "rank 0. Please check rank 0 logs for faulty rank."
)
WATCHDOG = (
    "[rank3]:[E321 02:07:08.408 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'"
)
ILLEGAL = (
    "[rank3]:[E321 ProcessGroupNCCL.cpp:1484] [PG 0 Rank 3] Process group watchdog thread terminated with exception: "
    "CUDA error: an illegal memory access was encountered\nterminate called after throwing an instance"
)
REMOTE = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3763, remote process exited or there was"
)
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
BECAUSE_OF = "\nThe above exception was the direct cause of the following exception:\n\n"


HANDLED = FRAMES + "ValueError: bad sample 17\n" + "".join(f"step {step}\n" for step in range(50))
"""A log of training that went on behind an exception."""


@pytest.mark.parametrize(
    ("exit_code", "stopped_by", "sign", "because"),
    [
        (-9, 0, Sign.OWN, "was killed by signal 9 (SIGKILL), which its agent did not send"),
        (-15, 15, Sign.STOPPED, "was stopped by its agent with signal 15 (SIGTERM)"),
        (3, 0, Sign.QUIET, "exited with code 3 and reported no lost peer"),
        (1, 0, Sign.OWN, "raised ValueError: bad sample 17"),
    ],
)
def test_an_exception_behind_which_training_went_on_is_not_what_ended_it(
    exit_code: int, stopped_by: int, sign: Sign, because: str
) -> None:
    """But for exit code 1, with which Python ends behind an exception that nothing handled."""
    found = classify_exit(exit_code, stopped_by, HANDLED)
    assert found.sign is sign
    assert found.because.startswith(because)


def test_an_exception_of_several_lines_is_what_ended_a_worker_that_was_killed_behind_it() -> None:
    """Its process was on the way out. C++ writes its frames, and torch warnings, behind the message."""
    behind = "Exception raised from a at b.cpp:1\n" + "".join(f"frame #{number}: c10\n" for number in range(20))
    text = f"{FRAMES}RuntimeError: one\ntwo\nthree\n{behind}[W1126 x.cpp:1] destroyed\n"
    assert classify_exit(-9, 9, text).sign is Sign.OWN


@pytest.mark.parametrize(
    ("exit_code", "stopped_by", "text", "sign"),
    [
        (0, 0, "", Sign.LEFT),
        (1, 0, FRAMES + "ValueError: boom", Sign.OWN),
        (1, 0, FRAMES + CLOSED, Sign.PEER),
        (1, 0, "".join(f"[rank0]: {line}\n" for line in (FRAMES + CLOSED).splitlines()), Sign.PEER),
        (1, 0, FRAMES + WAITED, Sign.TIMEOUT),
        (1, 0, FRAMES + MONITORED, Sign.TIMEOUT),
        (1, 0, FRAMES + REACHED, Sign.PEER),
        (1, 0, FRAMES + "torch.distributed.DistNetworkError: Connection reset by peer", Sign.PEER),
        (1, 0, FRAMES + "torch.distributed.DistStoreError: wait timeout after 5000ms, keys: /x", Sign.TIMEOUT),
        (1, 0, FRAMES + REMOTE + " a network error, NCCL version 2.28.8", Sign.PEER),
        (1, 0, FRAMES + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", Sign.OWN),
        # A peer, or a server outside the job: unclear.
        (1, 0, FRAMES + "ConnectionResetError: [Errno 104] Connection reset by peer", Sign.UNCLEAR),
        (1, 0, FRAMES + "torch.distributed.DistBackendError: NCCL error: ncclSystemError", Sign.UNCLEAR),
        # In a chain the first decides, in both directions.
        (1, 0, FRAMES + "ValueError: boom\n" + HANDLING + FRAMES + CLOSED, Sign.OWN),
        (1, 0, FRAMES + CLOSED + "\n" + BECAUSE_OF + FRAMES + "TrainingError: step 7 failed", Sign.PEER),
        # An exception that was reported earlier and handled does not count; nor does what C++ logs afterwards.
        (1, 0, FRAMES + CLOSED + "\nretrying\n" + FRAMES + "ValueError: boom", Sign.OWN),
        (1, 0, FRAMES + "ValueError: boom\n[W321 TCPStore.cpp] Broken pipe. Connection was likely closed.", Sign.OWN),
        (1, 0, "step 1\nstep 2\n", Sign.QUIET),
        (3, 0, "", Sign.QUIET),
        (0, 15, "", Sign.STOPPED),
        (-6, 0, WATCHDOG, Sign.TIMEOUT),
        (-6, 0, ILLEGAL, Sign.OWN),
        (-6, 0, "terminate called after throwing an instance of 'gloo::IoException'", Sign.PEER),
        (-6, 0, "free(): invalid pointer", Sign.OWN),
        (-11, 0, "", Sign.OWN),
        (-11, 0, "warning: gloo/transport is slow", Sign.OWN),
        (-9, 0, "", Sign.OWN),
        (-15, 0, "", Sign.OWN),
        (-15, 15, "", Sign.STOPPED),
        (-9, 9, "", Sign.STOPPED),
        (-9, 15, "", Sign.STOPPED),
        (143, 15, "", Sign.STOPPED),
        (1, 15, "", Sign.STOPPED),
        # Stopped while it exited with an error, its own or another's.
        (-15, 15, FRAMES + "ValueError: boom", Sign.OWN),
        (-15, 15, FRAMES + CLOSED, Sign.PEER),
    ],
)
def test_the_sign_of_an_exit(exit_code: int, stopped_by: int, text: str, sign: Sign) -> None:
    """From the exit code, the agent's own signals and the worker's last output, as torch, gloo and NCCL write it."""
    classified = classify_exit(exit_code, stopped_by, text)
    assert classified.sign is sign
    assert classified.because


@pytest.mark.parametrize(("text", "sign"), SIGNS, ids=str)
def test_every_sentence_of_the_table_decides(text: str, sign: Sign) -> None:
    """Each is found where it stands alone: no more general one before it hides it."""
    assert classify_exit(1, 0, f"{FRAMES}RuntimeError: {text}").sign is sign


def test_exit_code_1_without_any_output_to_read_is_unclear() -> None:
    """Python exits with 1 for any exception: without its text the fault may be the worker's own or a peer's."""
    assert classify_exit(1, 0, "", readable=False).sign is Sign.UNCLEAR
    assert classify_exit(3, 0, "", readable=False).sign is Sign.QUIET
    assert classify_exit(-11, 0, "", readable=False).sign is Sign.OWN


def test_a_suspended_worker_is_distinguished_from_one_that_was_only_stopped() -> None:
    """SIGSTOP, then the agent's SIGTERM: the exit code is the same."""
    assert classify_exit(-15, 15, "", suspended=True).sign is Sign.STANDING


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms", (1,)),
        ("[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 3000 ms", (1, 3)),
        ("[Rank 0]: Ranks " + ", ".join(map(str, range(50))) + " failed to pass monitoredBarrier", tuple(range(8))),
        ("Rank 99999999999999999999 failed to pass monitoredBarrier", ()),
        ("Rank of what? failed to pass monitoredBarrier", ()),
    ],
)
def test_ranks_that_an_error_names_are_read(line: str, ranks: tuple[int, ...]) -> None:
    """The monitored barrier names the missing ranks; their number is bounded, whatever the text."""
    assert classify_exit(1, 0, f"{FRAMES}RuntimeError: {line}").suspects == ranks


def test_an_error_ends_where_the_log_goes_on() -> None:
    """All lines of a message are taken, but not the lines of torch's C++ log after it."""
    text = "noise\n" + FRAMES + "ValueError: one\ntwo\n[W1 x.cpp] warning\n"
    assert first_error(text) == "ValueError: one\ntwo"
    assert first_error("nothing here") == ""
    assert error_excerpt(text, 3).startswith("Traceback")
    assert error_excerpt("a\nb\nc\nd\n", 2) == "c\nd"


def test_a_long_exception_is_cut_at_the_end_of_a_clause() -> None:
    """The reason is one line for people: its first half is whole, and dots say that something is missing."""
    message = "ValueError: batch 7 of epoch 3 has 31 rows, 32 are expected, and this sentence goes on. " + "x" * 200
    because = classify_exit(1, 0, FRAMES + message).because
    assert because == f"raised {message.partition(' x')[0]} ..."
    assert len(because) <= EXCEPTION_MAX + len("raised ")


@pytest.mark.parametrize(
    ("exit_code", "stopped_by", "text", "because"),
    [
        (0, 0, "", "exited 0"),
        (3, 0, "", "exited with code 3 and reported no lost peer"),
        (1, 15, "", "exited with code 1 after its agent sent it signal 15 (SIGTERM)"),
        (-15, 15, "", "was stopped by its agent with signal 15 (SIGTERM)"),
        (-9, 0, "", "was killed by signal 9 (SIGKILL), which its agent did not send"),
        (-11, 0, "", "crashed with SIGSEGV"),
        (-40, 0, "", "was killed by signal 40, which its agent did not send"),
        (1, 0, FRAMES + "ValueError: boom", "raised ValueError: boom"),
        (1, 0, FRAMES + CLOSED, "lost a peer (its error contains 'gloo/transport')"),
    ],
)
def test_the_reason_of_an_exit(exit_code: int, stopped_by: int, text: str, because: str) -> None:
    """It goes on after `rank 3` or `it`."""
    assert classify_exit(exit_code, stopped_by, text).because == because


TOP = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    import data\n'
DEEP = TOP + '  File "data.py", line 1, in <module>\n    load()\n  File "data.py", line 9, in load\n    1 / 0\n'
RUN_PATH = TOP.replace(
    '  File "train.py"',
    '  File "/x/launcher/in_worker/run_path.py", line 9, in main\n  File "<frozen runpy>", line 1\n  File "train.py"',
)


@pytest.mark.parametrize(
    ("text", "importing"),
    [
        (TOP + "ModuleNotFoundError: No module named 'data'", True),
        (RUN_PATH + "ModuleNotFoundError: No module named 'data'", True),
        (f"[rank0]: {TOP}[rank0]: ImportError: cannot import name 'x'", True),
        (DEEP + "ValueError: no such file", True),
        ("  File \"train.py\", line 2\n    if x\n        ^\nSyntaxError: expected ':'", True),
        (TOP + "ValueError: in the script itself, which may have worked for hours", False),
        (FRAMES + "ModuleNotFoundError: imported by a function", False),
        (FRAMES + "RuntimeError: boom" + HANDLING + DEEP + "ValueError: later", False),
        ("loss 0.3\nloss 0.2", False),
        ("", False),
    ],
)
def test_an_error_of_an_import_is_told_from_an_error_of_the_script(text: str, importing: bool) -> None:
    """By the frames of the traceback: below another module's own code, or of the import itself."""
    assert died_importing(text) is importing
