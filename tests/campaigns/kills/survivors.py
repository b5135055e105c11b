"""Kill agent, nursery and guardian in every order, and count the processes that survive: `make survivors`.

Each trial starts a real agent with two workers. Each worker starts descendants that are hard to find: children in its
process group, in sessions of their own, forked twice, with an empty environment, ignoring SIGTERM; in every tenth trial
500 more of the last kind. Then the victims are killed with SIGKILL, 0 to 20 ms apart. One second after the last kill no
process may be left. Beside all trials runs a bystander, an agent with workers and descendants of the same user, all of
which must be alive at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from support.procfs import marked, outlast, parent_of
from support.workers import WORKERS

FAMILY = str(WORKERS / "sup_family.py")
LIMIT_S = 1.0
BOUND_S = 60.0
"""Bound on waits for an event; only a broken trial takes so long."""
BOMB = 500
TOKEN = "ELASTIC_AGENT_SURVIVORS"
PROMISED = (("agent",), ("nursery",), ("agent", "nursery"), ("nursery", "agent"))
BEYOND = (("guardian",), ("agent", "guardian"), ("guardian", "agent"))


@dataclass(frozen=True)
class Trial:
    """What is killed, how, and the result."""

    victims: tuple[str, ...]
    bomb: bool
    pause_s: float
    watched: int = 0
    survivors: int = 0
    """How many of the watched processes are alive after the limit."""
    cleared_s: float = 0.0
    """Seconds from the last kill until the last watched process had exited."""
    trouble: str = ""

    @property
    def good(self) -> bool:
        return not self.survivors and not self.trouble


def plan(seed: int, index: int, orders: Sequence[tuple[str, ...]]) -> Trial:
    rng = random.Random(f"{seed}.{index}")
    pause_s = rng.choice((0.0, rng.uniform(0, 0.02)))
    return Trial(orders[index % len(orders)], bomb=index // len(orders) % 10 == 0, pause_s=pause_s)


def run(trial: Trial, limit_s: float) -> Trial:
    """Carry the trial out; survivors are the processes alive `limit_s` after the last kill."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stop = Path(folder) / "stop"
        token = f"{os.getpid()}.{time.monotonic_ns()}"
        flags = ["--bomb", str(BOMB)] if trial.bomb else []
        agent, families = stack.enter_context(started(token, [*flags, "--unless", str(stop)]))
        pids = {"agent": agent.pid, "nursery": parent_of(families[0][0])}
        pids["guardian"] = parent_of(pids["nursery"])
        watchers = {name: stack.enter_context(pidfd(pid)) for name, pid in pids.items()}
        fds = [stack.enter_context(pidfd(pid)) for family in families for pid in family]
        fds += [watchers["guardian"], watchers["nursery"]]
        stop.touch()
        for at, victim in enumerate(trial.victims):
            if at and trial.pause_s:
                select.select([], [], [], trial.pause_s)
            with suppress(ProcessLookupError):  # it may have exited because of the first kill
                signal.pidfd_send_signal(watchers[victim], signal.SIGKILL)
        began = time.monotonic()
        left = still_alive(fds, began + limit_s)
        cleared_s = time.monotonic() - began
        trouble = aftermath(agent, trial, token, began + limit_s)
        still_alive(fds, time.monotonic() + BOUND_S)
        return Trial(trial.victims, trial.bomb, trial.pause_s, len(fds), left, cleared_s, trouble)


def aftermath(agent: subprocess.Popen[bytes], trial: Trial, token: str, deadline: float) -> str:
    """What is wrong besides survivors; empty if nothing is. An agent that was not killed must finish its job, and no
    process may be left that the agent started between the first kill and the second."""
    code = agent.wait(BOUND_S)
    if "agent" not in trial.victims and code != 0:
        return f"the agent was not killed, but exited {code}"
    left = outlast(lambda: marked(token, TOKEN), deadline)
    return f"processes of the trial are left: {left}" if left else ""


@contextmanager
def started(token: str, arguments: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], list[list[int]]]]:
    """An agent with two workers, and the pids of each worker and its descendants; killed in the end."""
    flags = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", os.devnull, "--no-python"]
    argv = [sys.executable, "-m", "elastic_agent", *flags, sys.executable, "-S", FAMILY, *arguments]
    env = {**os.environ, TOKEN: token, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as agent:
        try:
            yield agent, families_of(agent)
        finally:
            agent.kill()


def families_of(agent: subprocess.Popen[bytes]) -> list[list[int]]:
    assert agent.stdout is not None
    found: list[list[int]] = []
    while len(found) < 2:
        line = agent.stdout.readline()
        assert line, "the agent exited before its workers had started all their descendants"
        label, *pids = line.split()
        assert label == b"family", line
        found.append(list(map(int, pids)))
    return found


@contextmanager
def pidfd(pid: int) -> Iterator[int]:
    fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        os.close(fd)


def still_alive(fds: Sequence[int], deadline: float) -> int:
    """How many have not exited by the deadline; returns as soon as all have."""
    poll = select.poll()
    left = set(fds)
    for fd in left:
        poll.register(fd, select.POLLIN)
    while left:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            break
        for fd, _ in ready:
            poll.unregister(fd)
            left.discard(fd)
    return len(left)


def campaign(seed: int, count: int, orders: Sequence[tuple[str, ...]], limit_s: float = LIMIT_S) -> list[Trial]:
    """Run `count` trials beside a bystander; raises AssertionError if one of its processes is missing at the end."""
    trials = []
    with started("bystander", []) as (_, families), ExitStack() as stack:
        bystanders = [stack.enter_context(pidfd(pid)) for family in families for pid in family]
        for index in range(count):
            trial = run(plan(seed, index, orders), limit_s)
            trials.append(trial)
            if not trial.good:
                print(f"trial {index}: {trial}", flush=True)
        missing = len(bystanders) - still_alive(bystanders, time.monotonic())
        assert not missing, f"{missing} of the bystander's {len(bystanders)} processes were killed"
    return trials


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=500, help="with agent, nursery or both killed")
    parser.add_argument("--beyond", type=int, default=99, help="with the guardian killed, alone or with the agent")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    good = True
    for count, orders in ((given.trials, PROMISED), (given.beyond, BEYOND)):
        trials = campaign(given.seed, count, orders)
        for order in orders:
            some = [trial for trial in trials if trial.victims == order]
            times = sorted(trial.cleared_s for trial in some) or [0.0]
            clean, watched = sum(trial.good for trial in some), sum(trial.watched for trial in some)
            print(
                f"{' then '.join(order):20} {clean:4} of {len(some):4} clean, {watched:6} processes, "
                f"{sum(trial.survivors for trial in some)} survivors; "
                f"gone after {times[len(times) // 2]:.3f} s (median), {times[-1]:.3f} s (most)",
                flush=True,
            )
        good = good and all(trial.good for trial in trials)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
