"""What the nursery costs: descriptors, memory and imports; and how it finds processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from elastic_agent.agent.lifecycle.events import WorkersGone
from elastic_agent.agent.nursery import descendants
from elastic_agent.agent.processes.supervisor import Supervisor
from support.procfs import open_files
from support.rigs.nursery import FAMILY, facts_until, family_of, launch, nursery_of
from support.source_tree import ROOT


def test_two_hundred_restarts_leak_no_descriptor(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """Agent and nursery hold as many descriptors after 200 batches as after the first."""
    counts = []
    for _ in range(200):
        supervisor.start([launch("/bin/true", key=0, out=pipe[1]), launch("foo-that-is-not", key=1, out=pipe[1])])
        facts_until(supervisor, WorkersGone)
        counts.append((open_files(os.getpid()), open_files(nursery_of(supervisor))))
    # The least of 20: the nursery may have one more open for a moment, while it looks for children.
    assert min(counts[:20]) == min(counts[-20:])


def test_the_nursery_is_small_and_imports_next_to_nothing(supervisor: Supervisor) -> None:
    """Less than 14 MiB resident, and no module of ours but those of its own folder."""
    supervisor.start([launch("true")])
    facts_until(supervisor, WorkersGone)
    status = Path(f"/proc/{nursery_of(supervisor)}/status").read_text()
    assert int(status.split("VmRSS:")[1].split()[0]) < 14 * 1024
    code = "import sys; sys.path.append(sys.argv[1]); import agent.nursery.guardian; print(*sorted(sys.modules))"
    argv = [sys.executable, "-I", "-S", "-c", code, str(ROOT)]
    names = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in names if name.startswith("agent")] == [
        "agent",
        "agent.nursery",
        *(f"agent.nursery.{name}" for name in ("cgroups", "descendants", "frames", "guardian", "server", "spawn")),
    ]
    assert not {"socket", "signal", "enum", "re", "typing", "dataclasses", "subprocess"} & set(names)


def test_processes_are_found_on_a_kernel_without_lists_of_children(
    supervisor: Supervisor, pipe: tuple[int, int]
) -> None:
    """Reading all of /proc gives the same children as reading each process's own list."""
    supervisor.start([launch(*FAMILY, out=pipe[1])])
    pids = family_of(pipe[0])
    found = descendants.children_by_parent()
    for pid in (os.getpid(), nursery_of(supervisor), *pids):
        assert sorted(found[pid]) == sorted(descendants.children_of(pid))
    assert {pids[0], pids[3]} <= set(found[nursery_of(supervisor)])
