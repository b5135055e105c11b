"""A nursery that is killed, a host without descriptors, and the logs of each round."""

from __future__ import annotations

import os
import resource
import signal

from elastic_agent.agent.lifecycle.restart_policy import MAX_HOST_FAILURES
from support.procfs import parent_of
from support.rigs.one_host import Host, alive


def test_a_killed_nursery_costs_no_restart_and_the_job_goes_on(host: Host) -> None:
    """If the parent of the workers is killed, the agent reports it, starts another and goes on, even with
    --max-restarts 0."""
    agent = host.start("--max-restarts", "0")
    worker = host.desk.wait_world(1)[0]
    assert parent_of(worker.pid) != agent.process.pid
    os.kill(parent_of(worker.pid), signal.SIGKILL)
    again = host.desk.wait_world(1, after=1)
    assert again[0].restarts == 0
    agent.wait_text("a failure of this host, not of the script: the process that owns the workers died")
    agent.wait_text("costs this node no restart")
    again[0].order("exit 0")
    assert agent.wait() == 0


def test_a_host_that_kills_its_nursery_three_times_in_a_row_ends_the_agent(host: Host) -> None:
    """Whatever the restart budget; the exit status blames the host."""
    agent = host.start("--max-restarts", "9")
    seen = []
    for after in range(MAX_HOST_FAILURES):
        seen += host.desk.wait_world(1, after=after)
        os.kill(parent_of(seen[-1].pid), signal.SIGKILL)
    assert agent.wait() == 71
    last = agent.text().splitlines()[-1]
    assert last.startswith("elastic-agent: exit 71: ")
    assert "3 times in a row" in last
    assert not any(alive(worker.pid) for worker in seen)


def test_a_host_without_descriptors_ends_the_agent(host: Host) -> None:
    """If another nursery cannot be started, the last line gives the reason, and the exit status blames the host."""
    agent = host.start()
    worker = host.desk.wait_world(1)[0]
    least = len(os.listdir(f"/proc/{agent.process.pid}/fd"))
    resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (least, least))
    os.kill(parent_of(worker.pid), signal.SIGKILL)
    assert agent.wait() == 71, agent.text()
    assert "Too many open files" in agent.text().splitlines()[-1]
    assert not alive(worker.pid)


def test_logs_of_every_round_are_kept_under_their_own_name(host: Host) -> None:
    """No file of an earlier attempt is overwritten or deleted."""
    agent = host.start("--max-restarts", "2", "--redirects", "3")
    for after in range(3):
        worker = host.desk.wait_world(1, after=after)[0]
        worker.order(f"raise attempt {after}" if after < 2 else "exit 0")
    assert agent.wait() == 0
    texts = sorted(path.read_text() for path in (host.folder / "logs").glob("*/attempt_*/0/stderr.log"))
    assert len(texts) == 3
    assert ["attempt 0" in texts[1], "attempt 1" in texts[2]] == [True, True]
