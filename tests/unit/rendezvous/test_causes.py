"""Whose fault it was: what one end says by itself, what many say together, and what the machine knows of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elastic_agent.agent.failures.classify import SIGNS, first_error, last_words, read
from elastic_agent.agent.failures.kernel import OomWatch, core_note, oom_note, stands_still
from elastic_agent.rendezvous.coordinator import charging, machine, root_cause
from elastic_agent.rendezvous.coordinator import events as told
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules
from elastic_agent.rendezvous.failures import (
    MAX_ANNOUNCED_EXITS,
    MAX_REPORTED_EXITS,
    PASSIVE,
    EndKind,
    Judged,
    Role,
    Sign,
    WorkerFailure,
    worth_reporting,
)
from elastic_agent.rendezvous.records import NodeState, Outcome, RoundPhase
from support.builders import after_records, record

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

# -- one end by itself -------------------------------------------------------------------------------------------------


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
        # A server of somebody else's, or a peer: nobody can tell.
        (1, 0, FRAMES + "ConnectionResetError: [Errno 104] Connection reset by peer", Sign.UNCLEAR),
        (1, 0, FRAMES + "torch.distributed.DistBackendError: NCCL error: ncclSystemError", Sign.UNCLEAR),
        # Of a chain the first decides, in both directions.
        (1, 0, FRAMES + "ValueError: boom\n" + HANDLING + FRAMES + CLOSED, Sign.OWN),
        (1, 0, FRAMES + CLOSED + "\n" + BECAUSE_OF + FRAMES + "TrainingError: step 7 failed", Sign.PEER),
        # What was told earlier, and got over, does not count; nor does what C++ logs afterwards.
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
        # Stopped on its way out of an error of its own, or of another's.
        (-15, 15, FRAMES + "ValueError: boom", Sign.OWN),
        (-15, 15, FRAMES + CLOSED, Sign.PEER),
    ],
)
def test_what_an_end_says(exit_code: int, stopped_by: int, text: str, sign: Sign) -> None:
    """Exit code, our own signals and the worker's last words, as torch, gloo and NCCL write them."""
    reading = read(exit_code, stopped_by, text)
    assert reading.sign is sign
    assert reading.because


@pytest.mark.parametrize(("text", "sign"), SIGNS, ids=str)
def test_every_sentence_of_the_table_is_understood(text: str, sign: Sign) -> None:
    """Each is found where it stands alone: none is hidden behind a more general one before it."""
    assert read(1, 0, f"{FRAMES}RuntimeError: {text}").sign is sign


def test_an_end_that_could_not_be_heard_is_unclear() -> None:
    """Exit code 1 is what Python gives to any exception: without a word it may be anybody's fault."""
    assert read(1, 0, "", heard=False).sign is Sign.UNCLEAR
    assert read(3, 0, "", heard=False).sign is Sign.QUIET
    assert read(-11, 0, "", heard=False).sign is Sign.OWN


def test_a_worker_that_stood_still_is_told_from_one_that_was_stopped() -> None:
    """SIGSTOP, then our SIGTERM: the exit code is the same."""
    assert read(-15, 15, "", standing=True).sign is Sign.STANDING


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
    """The monitored barrier knows who did not come; their number is bounded, whatever is written there."""
    assert read(1, 0, f"{FRAMES}RuntimeError: {line}").suspects == ranks


def test_an_error_ends_where_the_log_goes_on() -> None:
    """A message of several lines is taken whole, torch's C++ log behind it is not."""
    text = "noise\n" + FRAMES + "ValueError: one\ntwo\n[W1 x.cpp] warning\n"
    assert first_error(text) == "ValueError: one\ntwo"
    assert first_error("nothing here") == ""
    assert last_words(text, 3).startswith("Traceback")
    assert last_words("a\nb\nc\nd\n", 2) == "c\nd"


# -- many together -----------------------------------------------------------------------------------------------------


def end(rank: int, sign: Sign, **more: object) -> WorkerFailure:
    node = "ab"[rank // 2]
    failure = WorkerFailure(node, node, rank, rank % 2, 100 + rank, 1, sign=sign, sign_because=f"is {sign.value}")
    for name, value in more.items():
        object.__setattr__(failure, name, value)
    return failure


OWN, PEER, TIMEOUT, UNCLEAR, STOPPED, STANDING, LEFT, QUIET, MACHINE = (
    Sign.OWN,
    Sign.PEER,
    Sign.TIMEOUT,
    Sign.UNCLEAR,
    Sign.STOPPED,
    Sign.STANDING,
    Sign.LEFT,
    Sign.QUIET,
    Sign.HOST,
)


@pytest.mark.parametrize(
    ("seen", "cause", "role"),
    [
        # A failure of its own is the cause, wherever in the order it was heard of.
        ([(1, OWN), (0, PEER), (2, PEER)], 1, Role.CAUSE),
        ([(0, PEER), (2, PEER), (1, OWN), (3, STOPPED)], 1, Role.CAUSE),
        ([(0, PEER), (1, MACHINE), (2, STOPPED)], 1, Role.CAUSE),
        # Two: the first, and no more than likely; but what a machine took is no echo.
        ([(2, OWN), (1, OWN)], 2, Role.UNDECIDED),
        ([(2, MACHINE), (3, MACHINE), (1, OWN)], 2, Role.CAUSE),
        # One of unknown fault came before it: likely, no more.
        ([(0, UNCLEAR), (1, OWN)], 1, Role.UNDECIDED),
        # One that says nothing, among echoes.
        ([(0, PEER), (3, UNCLEAR), (2, PEER)], 3, Role.CAUSE),
        # All say nothing: the first is named, and no more.
        ([(3, UNCLEAR), (0, UNCLEAR), (1, STOPPED)], 3, Role.UNDECIDED),
        ([(0, UNCLEAR)], 0, Role.CAUSE),
        # Only echoes: who stood still, who left too early, who went on in silence.
        ([(0, TIMEOUT), (1, TIMEOUT), (2, STANDING), (3, STOPPED)], 2, Role.CAUSE),
        ([(0, TIMEOUT), (1, STANDING), (2, STANDING)], 1, Role.UNDECIDED),
        ([(3, LEFT), (0, PEER), (1, PEER), (2, PEER)], 3, Role.CAUSE),
        ([(3, LEFT), (2, LEFT), (0, PEER)], 3, Role.UNDECIDED),
        ([(0, TIMEOUT), (1, PEER), (2, TIMEOUT), (3, STOPPED)], 3, Role.CAUSE),
        ([(0, TIMEOUT), (2, STOPPED), (3, STOPPED)], 2, Role.UNDECIDED),
        ([(0, PEER), (1, PEER)], 0, Role.UNDECIDED),
        # Who left is seen to later than those whom it left; where another went on as well, it may have been that one.
        ([(0, PEER), (3, LEFT)], 3, Role.CAUSE),
        ([(2, PEER), (3, LEFT), (1, STOPPED)], 3, Role.UNDECIDED),
        # One that chose an exit code: certain if it is the only one, and less than an error told.
        ([(0, PEER), (1, QUIET)], 1, Role.CAUSE),
        ([(0, QUIET), (1, QUIET)], 0, Role.UNDECIDED),
        ([(0, QUIET), (1, OWN)], 1, Role.UNDECIDED),
    ],
)
def test_the_cause_among_many(seen: list[tuple[int, Sign]], cause: int, role: Role) -> None:
    """Each clause, by what each worker's end says and in the order heard of."""
    judgement = root_cause.judge([end(*each, order=order) for order, each in enumerate(seen)])
    assert judgement.cause is not None
    assert (judgement.cause.rank, judgement.role) == (cause, role)
    assert judgement.because


def test_a_rank_that_errors_name_is_the_cause() -> None:
    """The monitored barrier names rank 1; that rank 3 was stopped too says nothing."""
    deaths = [end(0, TIMEOUT, suspects=(1,)), end(2, PEER), end(3, STOPPED), end(1, STOPPED)]
    judgement = root_cause.judge(deaths)
    assert judgement.cause is deaths[3]
    assert judgement.role is Role.CAUSE
    assert root_cause.judge([end(0, TIMEOUT, suspects=(1, 3)), end(3, STOPPED), end(1, STOPPED)]).role is Role.UNDECIDED


@pytest.mark.parametrize(
    ("ways", "cause"),
    [
        # Three lost their peer, and say so in words of their own; they may be seen to end before it.
        (["step 7 failed on 0", "step 7 failed on 1", "boom", "step 8 failed on 3"], 2),
        # Two of four are not most: the first.
        (["step failed", "step failed", "boom", "bang"], 0),
        # All failed alike: the first.
        (["boom", "boom", "boom"], 0),
        (["boom", "bang"], 0),
    ],
)
def test_the_odd_one_among_many_that_failed_alike_is_likely_the_cause(ways: list[str], cause: int) -> None:
    """What one failure does to its peers it does to all of them; that is no proof."""
    deaths = [end(rank, OWN, sign_because=f"raised {way}") for rank, way in enumerate(ways)]
    judgement = root_cause.judge(deaths)
    assert judgement.cause is deaths[cause]
    assert judgement.role is Role.UNDECIDED
    assert root_cause.judge([*deaths, end(3, STOPPED)]).cause is deaths[cause]
    machine_took_one = [*deaths[1:], end(0, MACHINE)]
    assert root_cause.judge(machine_took_one).cause is deaths[1]


def test_what_others_did_not_do_is_no_evidence_before_all_have_told() -> None:
    """Only one worker is known to have been silent so far: it is likely, and certain when all have answered."""
    deaths = [end(0, PEER), end(1, STOPPED)]
    assert root_cause.judge(deaths).role is Role.CAUSE
    assert root_cause.judge(deaths, complete=False).role is Role.UNDECIDED
    assert root_cause.judge([*deaths, end(2, OWN)], complete=False).role is Role.CAUSE


def test_nobody_is_named_where_nobody_ended() -> None:
    """Without evidence there is no cause."""
    assert root_cause.judge([]) == root_cause.Judgement(None, Role.UNDECIDED, "no worker was seen to end")


def test_every_end_gets_a_role_and_a_reason() -> None:
    """Cause, collateral, undecided; what nobody can tell is not called collateral of an undecided cause."""
    deaths = [end(0, PEER), end(1, OWN), end(2, STOPPED), end(3, UNCLEAR)]
    judged = root_cause.roles(deaths, root_cause.judge(deaths))
    assert [each.role for each in judged] == [Role.COLLATERAL, Role.CAUSE, Role.COLLATERAL, Role.COLLATERAL]
    deaths = [end(0, UNCLEAR), end(1, UNCLEAR), end(2, STOPPED)]
    judged = root_cause.roles(deaths, root_cause.judge(deaths))
    assert [each.role for each in judged] == [Role.UNDECIDED, Role.UNDECIDED, Role.COLLATERAL]
    assert all(each.because for each in judged)


def test_a_node_with_many_workers_tells_the_failures_first() -> None:
    """The record is bounded: those that were only stopped are left out before those that failed."""
    deaths = [end(0, LEFT), *[end(1, STOPPED) for _ in range(9)], end(2, PEER), end(3, OWN)]
    kept = worth_reporting(deaths)
    assert len(kept) == MAX_REPORTED_EXITS
    assert kept[-2:] == (deaths[-2], deaths[-1])
    assert kept[0].sign is STOPPED


# -- charges -----------------------------------------------------------------------------------------------------------

RULES = Rules(own="a", min_nodes=2, max_nodes=2)


def job(**local: bool) -> Rendezvous:
    """Nodes a and b, two workers each, in round 1."""
    state = Rendezvous(epoch=1)
    for node in "ab":
        state = say(state, 0.0, node, 1, NodeState.WAITING, number=0, local=local.get(node, False))
    for node in "ab":
        state = say(state, 1.0, node, 2, NodeState.WORKING, local=local.get(node, False))
    return state


def say(
    state: Rendezvous,
    now: float,
    node: str,
    seq: int,
    phase: NodeState,
    *deaths: WorkerFailure,
    number: int = 1,
    left: int = 0,
    local: bool = False,
) -> Rendezvous:
    failure = next((death for death in deaths if death.sign not in PASSIVE), None)
    made = record(node, seq, phase, number, failure, restarts_left=left, nproc=2, deaths=deaths, charge_local=local)
    return after_records(state, now, RULES, made)


def test_the_node_of_the_cause_is_charged_not_that_of_its_echo() -> None:
    """Node a failed first, but only lost its peer; node b has the cause, a restart left, and pays it."""
    state = say(job(), 2.0, "a", 3, NodeState.BROKEN, end(0, PEER))
    assert (state.phase, state.hold) == (RoundPhase.OVER, True)
    state = say(state, 2.1, "a", 4, NodeState.WAITING, end(0, PEER), end(1, PEER))
    state = say(state, 2.2, "b", 3, NodeState.WAITING, end(2, OWN), end(3, PEER), left=1)
    assert state.phase is RoundPhase.RUNNING
    assert state.ended is not None
    assert (state.ended.kind, state.ended.charged, state.ended.role) == (EndKind.FAILURE, "b", Role.CAUSE)
    assert [each.death.rank for each in state.ended.judged] == [0, 1, 2, 3]


def test_who_counts_as_torchrun_does_pays_for_every_failure_of_its_own() -> None:
    """--charge local: node a lost its peer only, has no restart left, and ends the job as it would under torchrun."""
    state = say(job(a=True), 2.0, "a", 3, NodeState.BROKEN, end(0, PEER), local=True)
    state = say(state, 2.1, "a", 4, NodeState.WAITING, end(0, PEER), local=True)
    state = say(state, 2.2, "b", 3, NodeState.WAITING, end(2, OWN), left=1)
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.FAILED)
    assert "no restarts are left on a" in state.because


@pytest.mark.parametrize("local", [False, True])
def test_what_a_machine_did_to_its_workers_charges_nobody(local: bool) -> None:
    """Node b lost its nursery and node a failed of that; neither has a restart left, and the job goes on."""
    state = say(job(b=local), 2.0, "a", 3, NodeState.BROKEN, end(0, PEER))
    state = say(state, 2.1, "b", 3, NodeState.WAITING, end(2, MACHINE), local=local)
    state = say(state, 2.2, "a", 4, NodeState.WAITING, end(0, PEER), end(1, PEER))
    assert (state.phase, state.number) == (RoundPhase.RUNNING, 2)
    assert state.ended is not None
    assert (state.ended.kind, state.ended.charged, state.ended.role) == (EndKind.FAILURE, "", Role.CAUSE)
    assert state.ended.failure is not None
    assert state.ended.failure.rank == 2


def test_a_departure_takes_the_charge_from_all() -> None:
    """Whatever failed while a node left is not charged; what it says by itself is still told."""
    state = say(job(), 2.0, "a", 3, NodeState.BROKEN, end(0, PEER))
    state = say(state, 2.1, "b", 3, NodeState.LEAVING)
    state = say(state, 2.2, "a", 4, NodeState.WAITING, end(0, PEER), end(1, OWN))
    assert state.ended is not None
    assert (state.ended.kind, state.ended.charged) == (EndKind.DEPARTURE, "")
    assert [each.role for each in state.ended.judged] == [Role.COLLATERAL, Role.UNDECIDED]


def test_a_certain_cause_is_not_kept_waiting_by_a_node_that_stops_slowly() -> None:
    """Node b's workers mind no SIGTERM; the cause on a is known, so the job ends without them, and no earlier."""
    state = say(job(), 2.0, "a", 3, NodeState.BROKEN, end(0, OWN))
    state = say(state, 2.1, "a", 4, NodeState.WAITING, end(0, OWN))
    state = say(state, 2.1, "b", 3, NodeState.STOPPING)
    state = machine.step(state, told.DeadlineReached(), 2.0 + charging.EVIDENCE_S / 2, RULES).state
    assert state.phase is RoundPhase.OVER
    state = machine.step(state, told.DeadlineReached(), 2.0 + charging.EVIDENCE_S, RULES).state
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.FAILED)


def test_an_uncertain_cause_waits_for_all_the_evidence() -> None:
    """Node a lost a peer; nobody is judged before b's workers are gone and it has said how."""
    state = say(job(), 2.0, "a", 3, NodeState.BROKEN, end(0, PEER))
    state = say(state, 2.1, "b", 3, NodeState.STOPPING)
    state = machine.step(state, told.DeadlineReached(), 20.0, RULES).state
    assert state.phase is RoundPhase.OVER
    state = say(state, 20.0, "b", 4, NodeState.WAITING, end(2, STANDING), left=1)
    state = say(state, 20.1, "a", 4, NodeState.WAITING, end(0, PEER))
    assert state.ended is not None
    assert (state.ended.charged, state.ended.role) == ("b", Role.CAUSE)


def test_an_announcement_bounds_what_it_tells() -> None:
    """Sixteen ends, the cause among them, and only its words: every node reads this."""
    many = [end(0, PEER, pid=number, said="x" * 4000) for number in range(30)]
    cause = end(1, OWN, said="y" * 4000)
    kept = charging._kept(tuple(Judged(each, Role.UNDECIDED, "") for each in [*many, cause]), cause)
    assert len(kept) == MAX_ANNOUNCED_EXITS
    assert kept[-1].death is cause
    assert {each.death.said for each in kept[:-1]} == {"is peer"}


# -- what the machine knows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cgroup", "path"),
    [
        ("0::/jobs/7\n", "jobs/7/memory.events"),
        ("0::/host/only\n", "memory.events"),
        ("4:memory:/jobs/7\n0::/\n", "memory/jobs/7/memory.oom_control"),
    ],
)
def test_an_oom_kill_is_claimed_only_if_the_counter_rose(tmp_path: Path, cgroup: str, path: str) -> None:
    """Both generations of cgroups, and a container that sees only its own part of the tree."""
    own = tmp_path / "own"
    own.write_text(cgroup)
    counter = tmp_path / path
    counter.parent.mkdir(parents=True, exist_ok=True)
    counter.write_text("oom 9\noom_kill 5\n")
    watch = OomWatch(str(tmp_path), str(own))
    assert watch.kills() == 0
    watch.begin()
    assert watch.kills() == 0
    counter.write_text("oom 9\noom_kill 7\n")
    assert watch.kills() == 2
    counter.unlink()
    assert watch.kills() == 0


def test_without_evidence_there_is_no_oom_kill(tmp_path: Path) -> None:
    """A process killed by hand, no counter, no log of the kernel: nothing is said."""
    assert oom_note(1, 0, time.monotonic(), str(tmp_path / "none")) == ""
    assert "2 processes" in oom_note(1, 2, time.monotonic(), str(tmp_path / "none"))


def test_the_kernels_own_line_names_the_process(tmp_path: Path) -> None:
    """The log is read record by record; an older kill of another process with this number does not count."""
    log = tmp_path / "kmsg"
    now_us = int(time.monotonic() * 1e6)
    log.write_text(f"3,1,{now_us - 10**9},-;Out of memory: Killed process 77 (old)\n")
    assert oom_note(77, 0, time.monotonic(), str(log)) == ""
    log.write_text(f"3,1,{now_us},-;Memory cgroup out of memory: Killed process 77 (python) total-vm:9kB\n")
    assert "Killed process 77 (python)" in oom_note(77, 0, time.monotonic(), str(log))
    assert oom_note(7, 0, time.monotonic(), str(log)) == ""


@pytest.mark.parametrize(
    ("pattern", "word"), [("core.%p", "core.%p"), ("|/usr/bin/catch %P", "/usr/bin/catch"), ("|", "?")]
)
def test_where_a_core_went_is_told(tmp_path: Path, pattern: str, word: str) -> None:
    """A file's pattern, or the program that the kernel hands it to."""
    path = tmp_path / "core_pattern"
    path.write_text(pattern)
    assert word in core_note(str(path))


def test_a_stopped_process_is_seen_to_stand_still() -> None:
    """SIGSTOP is visible from outside; a process that is gone stands nowhere."""
    process = subprocess.Popen([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert stands_still(process.pid)
    finally:
        process.kill()
        process.wait()
    assert not stands_still(process.pid)
    assert not stands_still(os.getpid())
