"""Disks, inodes, quotas and mounts, on file systems that are really full or really dead."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_agent.control import commands, exchange
from elastic_agent.control.commands import Asker, NoReading, TimedOut
from elastic_agent.control.decisions.watches import Reading, ReadingResult
from elastic_agent.control.readings.filesystems import parse_quota
from elastic_agent.control.readings.readers import reader_of
from elastic_agent.control.table.parse import parse_table
from elastic_agent.control.table.watch import Watch
from elastic_agent.control.watcher import runner
from support.outside.mounts import dead_mount, tmpfs
from support.procfs import wait_exit

MB = 1 << 20
BOUND_S = 60.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """16 MiB and 100 inodes."""
    with tmpfs(tmp_path / "disk", "size=16m,nr_inodes=100") as path:
        yield path


def watch(what: str, threshold: str, **keys: object) -> Watch:
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"what": what, "threshold": threshold, **keys}.items()]
    return parse_table("[[watch]]\n" + "\n".join(lines), "w.toml").watches[0]


def fill(path: Path, megabytes: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(megabytes * MB))


def look(a_watch: Watch, now: float = 0.0) -> Reading:
    return reader_of(a_watch).read(now)


@pytest.mark.parametrize("threshold", ["80 % used", "20 % free", "4 MiB free"])
def test_a_disk_is_over_once_it_is_filled_to_the_threshold(disk: Path, threshold: str) -> None:
    """12 of 16 MiB are not, 13 are."""
    a_watch = watch("disk", threshold, path=str(disk))
    fill(disk / "a", 11)
    assert look(a_watch).verdict is ReadingResult.UNDER
    fill(disk / "b", 2)
    reading = look(a_watch)
    assert (reading.verdict, reading.text) == (
        ReadingResult.OVER,
        f"81.2 % used, 3.15 MB free (limit {threshold})",
    )


def test_a_disk_without_a_free_byte_is_read(disk: Path) -> None:
    """Full is 100 %, and the reading itself needs no room."""
    with pytest.raises(OSError, match="No space left"):
        fill(disk / "a", 17)
    assert look(watch("disk", "90 % used", path=str(disk))).text.startswith("100.0 % used, 0 B free")


def test_inodes_run_out_though_bytes_are_free(disk: Path) -> None:
    """90 empty files are a full file system to the inodes' watch, and an empty one to the disk's."""
    assert look(watch("inodes", "80 % used", path=str(disk))).verdict is ReadingResult.UNDER
    for number in range(90):
        (disk / str(number)).touch()
    assert look(watch("inodes", "80 % used", path=str(disk))).verdict is ReadingResult.OVER
    assert look(watch("inodes", "20 free", path=str(disk))).verdict is ReadingResult.OVER
    assert look(watch("disk", "10 % used", path=str(disk))).verdict is ReadingResult.UNDER


def test_hours_left_come_from_the_sizes_and_times_of_the_last_checkpoints(disk: Path) -> None:
    """2 MiB an hour, 10 MiB free, of which the next takes 2: 4 hours."""
    for number in range(3):
        file = disk / f"step-{number}" / "model.pt"
        fill(file, 2)
        os.utime(file, (1e9 + 3600 * number, 1e9 + 3600 * number))
    reading = look(watch("disk", "5 hours left", path=str(disk)))
    assert reading.verdict is ReadingResult.OVER
    assert reading.text.startswith("4 h 0 min left: 10.5 MB free, 2.1 MB an hour, a checkpoint takes 2.1 MB")
    assert look(watch("disk", "3 hours left", path=str(disk))).verdict is ReadingResult.UNDER


def test_the_biggest_family_of_names_is_the_checkpoints(disk: Path) -> None:
    """Logs that are numbered too are not taken for them."""
    for number in range(3):
        fill(disk / f"step-{number}" / "model.pt", 2)
        (disk / f"log{number}.txt").write_text("x")
    sizes = [size for _, size, _ in Asker().ask("checkpoints", str(disk))]
    assert sizes == [2 * MB] * 3


def test_hours_left_come_from_the_measured_rate_where_there_are_no_checkpoints(disk: Path) -> None:
    """1 MiB an hour, measured over five looks; before, it is still measuring."""
    a_watch = watch("disk", "9 hours left", path=str(disk))
    reader, readings = reader_of(a_watch), []
    for hour in range(8):
        fill(disk / ("x" * (hour + 1)), 1)
        readings.append(reader.read(3600.0 * hour))
    assert [reading.verdict for reading in readings[:4]] == [ReadingResult.NOT_YET] * 4
    assert readings[-1].verdict is ReadingResult.OVER
    assert readings[-1].text.startswith("8 h 0 min left: 8.39 MB free, 1.05 MB an hour")


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The reason is the file system's own."""
    with pytest.raises(NoReading, match=r"No such file or directory: .*absent"):
        look(watch("disk", "90 % used", path=str(tmp_path / "absent")))


def test_a_dead_mount_is_found_in_time_and_hangs_nothing(tmp_path: Path) -> None:
    """The look ends within its limit, though whoever asks that file system waits in the kernel."""
    with dead_mount(tmp_path / "nfs") as path:
        begun = time.monotonic()
        reading = look(watch("mount", "0.3 s", path=str(path)))
        assert time.monotonic() - begun < 10
    assert reading.verdict is ReadingResult.OVER
    assert reading.text == f"no answer from the file system of {path} in 0.3 s"


def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released by each thread that is about to wait for the answer to another's question."""
    arrived, wait = threading.Semaphore(0), commands._UnderWay.wait

    def waits(awaited: commands._UnderWay) -> list[list[float]]:
        arrived.release()
        return wait(awaited)

    monkeypatch.setattr(commands._UnderWay, "wait", waits)
    return arrived


def test_watches_that_ask_a_file_system_the_same_at_once_share_one_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three ask, and one process is started; another question has a process of its own, which the first, that hangs,
    does not hold up."""
    probe, path = tmp_path / "probe.py", tmp_path / "path"
    probe.write_text(
        "import sys\n"
        "print(file=open(sys.argv[2] + '.asked', 'a'))\n"
        "print(open(sys.argv[2]).read() if sys.argv[1] == 'hangs' else 2.0)\n"
    )
    os.mkfifo(path)
    monkeypatch.setattr(commands, "PROBE", probe)
    arrived = waiting(monkeypatch)
    systems = commands.FileSystems()
    answers: list[list[list[float]]] = []
    threads = [threading.Thread(target=lambda: answers.append(systems.ask("hangs", str(path)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads[1:]:
        assert arrived.acquire(timeout=20)
    assert systems.ask("answers", str(path)) == [[2.0]]
    path.write_text("1.0")
    for thread in threads:
        thread.join(20)
    assert answers == [[[1.0]]] * 3
    assert len((tmp_path / "path.asked").read_text().splitlines()) == 2


def test_what_a_file_system_refuses_is_refused_to_all_that_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next who asks starts a process again."""
    refused: list[bool] = []
    arrived, asked = waiting(monkeypatch), commands.Asker.ask

    def ask(asker: Asker, question: str, path: str, limit_s: float) -> list[list[float]]:
        assert refused or arrived.acquire(timeout=20)
        return asked(asker, question, path, limit_s)

    monkeypatch.setattr(commands.Asker, "ask", ask)
    systems, absent = commands.FileSystems(), str(tmp_path / "absent")

    def refuse() -> None:
        with pytest.raises(NoReading, match="No such file or directory"):
            systems.ask("statvfs", absent)
        refused.append(True)

    threads = [threading.Thread(target=refuse) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    refuse()
    assert len(refused) == 3


PIDS = "import os, sys\nfor _ in sys.stdin:\n    print(os.getpid())\n    print(flush=True)\n"
"""A probe that answers with its process."""


def test_the_process_that_looks_is_kept_and_replaced_once_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is killed between two looks is replaced at once; one that hangs is killed."""
    monkeypatch.setattr(commands, "PROBE", tmp_path / "probe.py")
    commands.PROBE.write_text(PIDS)

    def asked(limit_s: float = 20.0) -> int:
        [[pid]] = asker.ask("statvfs", "/", limit_s)
        return int(pid)

    asker = Asker()
    asker.keeps = True
    with closing(asker):
        first = asked()
        assert asked() == first
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        second = asked()
        assert asked() == second != first
        os.kill(second, signal.SIGSTOP)
        with pytest.raises(TimedOut, match=r"no answer from the file system of / in 0.3 s"):
            asked(0.3)
        assert asked() not in (first, second)
    assert asked() != asked(), "behind close, nothing is kept"


def test_watches_that_look_on_and_on_start_one_process_and_leave_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one thread, whose looks follow each other."""
    monkeypatch.setattr(commands, "PROBE", tmp_path / "probe.py")
    asked, stop, threads = tmp_path / "asked", threading.Event(), list[int]()
    commands.PROBE.write_text(
        f"print('x', end='', file=open({str(asked)!r}, 'a'))\n{PIDS.replace('os.getpid()', '8, 4, 4')}"
    )
    answer = commands.Asker.ask

    def ask(asker: Asker, *question: Any) -> list[list[float]]:
        threads.append(threading.get_native_id())
        return answer(asker, *question)

    def tell(line: str) -> None:
        assert line.startswith("disk /: under: 50.0 % used"), line
        if len(threads) >= 5:
            stop.set()

    monkeypatch.setattr(commands.Asker, "ask", ask)
    table = parse_table('[[watch]]\nwhat = "disk"\npath = "/"\nthreshold = "80 % used"\nevery = "0.1 s"', "w.toml")
    actor: Any = SimpleNamespace(act=lambda happening: None, close=lambda: None)
    runner.Runner(table, actor, tell).run(stop)
    assert asked.read_text() == "x"
    assert len(set(threads)) == 1


def test_a_mount_that_answers_is_fine(tmp_path: Path) -> None:
    """So that the test above does not pass for another reason."""
    assert look(watch("mount", "10 s", path=str(tmp_path))).verdict is ReadingResult.UNDER


@pytest.mark.parametrize(
    ("printed", "pattern", "used", "limit"),
    [
        ("87 %", "", 87, 100),
        ("12G 20G", "", 12 * 2**30, 20 * 2**30),
        ("500 GB of 1 TB", "", 500e9, 1e12),
        ("user root (uid 0): used 3 GB, limit 4 GB", r"used (?P<used>[\d. GB]+), limit (?P<limit>[\d. GB]+)", 3e9, 4e9),
        ("0 files, 91.5 percent", r"(?P<percent>[\d.]+) percent", 91.5, 100),
    ],
)
def test_what_quota_commands_print_is_understood(printed: str, pattern: str, used: float, limit: float) -> None:
    """A percentage, two sizes, or what a pattern finds."""
    assert parse_quota(printed, pattern) == (used, limit)


def test_a_quota_is_over_by_what_its_command_prints() -> None:
    """A real command, with its arguments."""
    a_watch = watch("quota", "90 % used", command=[sys.executable, "-c", "print('19 GB', '20 GB')"])
    assert look(a_watch).text == "95.0 % used, 1 GB free (limit 90 % used)"
    assert look(a_watch).verdict is ReadingResult.OVER


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('no such user')", "ended with status 1: no such user"),
        ("print('all is well')", "neither a percentage nor two sizes in the output, which begins 'all is well'"),
    ],
)
def test_a_quota_command_that_fails_says_why(code: str, said: str) -> None:
    """It is neither over nor under then."""
    with pytest.raises(NoReading, match=said):
        look(watch("quota", "90 % used", command=shlex.join([sys.executable, "-c", code])))


def test_a_command_that_takes_too_long_is_killed_with_its_children() -> None:
    """Nothing of it is left behind, which the fixture of all tests checks."""
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    begun = time.monotonic()
    with pytest.raises(NoReading, match="no answer from python"):
        Asker().run([sys.executable, "-c", nested], 0.3)
    assert time.monotonic() - begun < 20


def test_of_a_command_that_prints_without_end_no_more_is_kept_than_is_wanted() -> None:
    """What it prints is in the memory of an agent, whose end would end the training."""
    flood = f"import sys; [sys.stdout.write('x' * {MB}) for _ in range(48)]"
    tracemalloc.start()
    try:
        assert len(Asker().run([sys.executable, "-c", flood], BOUND_S)) == MB
        assert tracemalloc.get_traced_memory()[1] < 16 * MB
    finally:
        tracemalloc.stop()


def test_a_command_has_ended_when_its_own_process_has() -> None:
    """Something that it leaves in the background may have its output, as a script's `&` leaves it."""
    code = f"import subprocess; print(subprocess.Popen(['sleep', '{10 * BOUND_S:.0f}']).pid)"
    pid = int(Asker().run([sys.executable, "-c", code], BOUND_S))
    os.kill(pid, signal.SIGKILL)
    wait_exit(pid, time.monotonic() + BOUND_S)


@pytest.mark.parametrize("shown", [True, False])
def test_a_command_gets_all_of_its_input_and_need_not_read_it(shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much that is, also on a kernel that does not show that a process has ended."""
    if not shown:
        monkeypatch.setattr(exchange, "_exit_fd", lambda pid: exchange.NONE)
    argv = [sys.executable, "-c", "import sys; print(len(sys.stdin.read()))"]
    assert Asker().run(argv, BOUND_S, "é" * MB) == f"{MB}\n"
    assert Asker().run([sys.executable, "-c", "print('well')"], BOUND_S, "x" * MB) == "well\n"


def test_a_killed_process_that_is_not_gone_is_not_joined_by_a_second() -> None:
    """One that a cgroup has frozen is not reached by SIGKILL, as one that waits for a dead disk is not."""
    freezer = Path("/sys/fs/cgroup/freezer") / f"test-{os.getpid()}"
    try:
        freezer.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup of version 1 that freezes: {error.strerror}")
    freeze = "import os, sys; at = sys.argv[1]; open(at + '/cgroup.procs', 'w').write(str(os.getpid())); "
    freeze += "open(at + '/freezer.state', 'w').write('FROZEN')"
    asker = Asker()
    try:
        with pytest.raises(TimedOut, match="no answer from python"):
            asker.run([sys.executable, "-c", freeze, str(freezer)], 0.5)
        with pytest.raises(TimedOut, match=r"python\S* \(pid \d+\) still exists after SIGKILL"):
            asker.run([sys.executable, "-c", ""], 20)
        pids = (freezer / "cgroup.procs").read_text().split()
        assert len(pids) == 1
        (freezer / "freezer.state").write_text("THAWED")
        wait_exit(int(pids[0]), time.monotonic() + 20)
        assert asker.run([sys.executable, "-c", "print('well')"], 20) == "well\n"
    finally:
        (freezer / "freezer.state").write_text("THAWED")
        freezer.rmdir()
