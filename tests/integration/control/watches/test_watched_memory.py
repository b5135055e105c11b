"""Watches of memory, on processes and cgroups that really leak."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastic_agent.control.decisions.watches import ReadingResult
from elastic_agent.control.readings import memory
from elastic_agent.control.readings.readers import reader_of
from support.procfs import kill
from support.rigs.watched import LOOK_S, WAIT_S, child, until, watch

LEAK = "kept.append(bytearray(os.urandom(1)) * 500_000); time.sleep(0.01)"
SHARED = "shared.write(bytes(500_000)); shared.flush(); time.sleep(0.01)"


def test_a_leak_is_found_before_it_reaches_the_limit() -> None:
    """A child that grows by some 50 MB a second is said to reach 2 GB within the hour, with its rank."""
    code = f"kept = []; print('up', flush=True)\nwhile True: {LEAK}"
    with child(code, "leaky", RANK="3") as process:
        a_watch = watch("worker-memory", threshold="1 hours left", process="leaky$", limit="2 GB", every="0.02 s")
        reading = until(reader_of(a_watch), ReadingResult.OVER)
    assert reading.text.startswith(f"rank 3 (pid {process.pid}) grows by ")


def test_page_cache_and_shared_maps_are_no_leak(tmp_path: Path) -> None:
    """A child that writes as fast to a file that it has mapped does not grow."""
    code = f"""
shared = open({str(tmp_path / "shared")!r}, "w+b")
maps = []
print('up', flush=True)
while True:
    {SHARED}
    if shared.tell() < 2**27:
        maps.append(mmap.mmap(shared.fileno(), 0))
        sum(maps[-1][::4096])
"""
    with child(code, "sharing"):
        a_watch = watch("worker-memory", threshold="1 hours left", process="sharing$", limit="10 GB", every="0.02 s")
        reader = reader_of(a_watch)
        until(reader, ReadingResult.UNDER)
        for _ in range(20):
            time.sleep(LOOK_S)
            assert reader.read(time.monotonic()).verdict is ReadingResult.UNDER


def test_a_worker_over_its_size_is_named() -> None:
    """The largest of those that match, with its rank."""
    code = "kept = bytearray(os.urandom(1)) * 100_000_000; print('up', flush=True); time.sleep(60)"
    with child(code, "big one", RANK="1") as process, child("print('up', flush=True); time.sleep(60)", "big two"):
        over = reader_of(watch("worker-memory", threshold="90 MB used", process="big (one|two)$")).read(0)
        under = reader_of(watch("worker-memory", threshold="1 GB used", process="big (one|two)$")).read(0)
    assert (over.verdict, under.verdict) == (ReadingResult.OVER, ReadingResult.UNDER)
    assert re.match(rf"rank 1 \(pid {process.pid}\) uses 1\d\d MB \(limit 90 MB used\)", over.text)


def test_the_hosts_memory_is_read() -> None:
    """At least this process uses some, and not all is used."""
    assert reader_of(watch("memory", threshold="0.001 % used")).read(0).verdict is ReadingResult.OVER
    assert reader_of(watch("memory", threshold="100 % used")).read(0).verdict is ReadingResult.UNDER


def test_a_cgroup_that_is_tighter_than_the_host_counts(tmp_path: Path) -> None:
    """8 GB of a limit of 10 GB are used, 1 GB of them page cache: 30 % are free. The host would have 90 %."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / str(os.getpid())).mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 100000000 kB\nMemAvailable: 90000000 kB\nAnonPages: 9000000 kB\n")
    (proc / str(os.getpid()) / "cgroup").write_text("0::/job/step\n")
    job = cgroups / "job"
    (job / "step").mkdir(parents=True)
    (job / "step" / "memory.max").write_text("max\n")
    (job / "memory.max").write_text("10000000000\n")
    (job / "memory.current").write_text("8000000000\n")
    (job / "memory.stat").write_text("anon 7000000000\nfile 1000000000\nshmem 0\n")
    a_watch = watch("memory", threshold="60 % used")
    reading = memory.Memory(a_watch, proc=proc, cgroups=cgroups).read(0)
    assert (reading.verdict, reading.text) == (
        ReadingResult.OVER,
        "memory in its cgroup: 70.0 % used, 3 GB free (limit 60 % used)",
    )


@contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    """A cgroup of this test's with a limit in bytes, whose processes are killed at the end."""
    path = Path("/sys/fs/cgroup/memory") / f"test-{os.getpid()}"
    try:
        path.mkdir()
        (path / "memory.limit_in_bytes").write_text(str(limit))
    except OSError as error:
        pytest.skip(f"no cgroup of version 1 that limits memory: {error.strerror}")
    try:
        yield path
    finally:
        deadline = time.monotonic() + WAIT_S
        while (pids := (path / "cgroup.procs").read_text().split()) and time.monotonic() < deadline:
            for pid in pids:
                kill(int(pid))
            time.sleep(0.01)
        path.rmdir()


ENTER = "open(sys.argv[2] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"


def test_the_memory_of_a_real_cgroup_is_over_by_what_its_processes_hold_and_not_by_page_cache(tmp_path: Path) -> None:
    """Of 400 MB, 150 MB in files are none that is used, 300 MB in the process are."""
    code = f"""
{ENTER}
with open({str(tmp_path / "big")!r}, "wb") as file:
    file.write(bytes(150_000_000))
print('up', flush=True)
sys.stdin.readline()
kept = bytearray(os.urandom(1)) * 300_000_000
print('grown', flush=True)
time.sleep(60)
"""
    with memory_cgroup(400_000_000) as cgroup, child(code, "held there", str(cgroup)) as process:
        reader = reader_of(watch("memory", threshold="60 % used", process="held there"))
        assert "file" in (cgroup / "memory.stat").read_text()
        under = reader.read(0)
        assert (under.verdict, under.text[:20]) == (ReadingResult.UNDER, "memory in its cgroup")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "grown\n"
        over = reader.read(1)
    assert over.verdict is ReadingResult.OVER
    assert re.match(r"memory in its cgroup: \d\d\.\d % used, .* \(limit 60 % used\)", over.text), over.text


def test_a_leak_in_a_cgroup_is_found_before_it_reaches_the_limit() -> None:
    """The process that leaks is alive when it is said, and the kernel has killed nobody."""
    code = f"{ENTER}kept = []; print('up', flush=True)\nwhile True: {LEAK}"
    with memory_cgroup(2_000_000_000) as cgroup, child(code, "leaks there", str(cgroup)) as process:
        a_watch = watch("memory", threshold="1 hours left", process="leaks there", every="0.02 s")
        reading = until(reader_of(a_watch), ReadingResult.OVER)
        assert process.poll() is None
    assert reading.text.startswith("memory in its cgroup grows by "), reading.text


def test_swap_is_over_by_what_is_used_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And never where the host has none. Real swap would be the whole host's, so the kernel's file is one of ours."""
    monkeypatch.setattr(memory, "PROC", tmp_path)
    reader = reader_of(watch("swap", threshold="50 % used"))
    for total, free, verdict in (
        (1000, 600, ReadingResult.UNDER),
        (1000, 400, ReadingResult.OVER),
        (0, 0, ReadingResult.UNDER),
    ):
        (tmp_path / "meminfo").write_text(f"SwapTotal: {total} kB\nSwapFree: {free} kB\n")
        assert reader.read(0).verdict is verdict
