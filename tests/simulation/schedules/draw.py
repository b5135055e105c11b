"""A seed becomes a job, its nodes, and its faults. Each seed draws which kinds of faults it has at all (a swarm)."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

from elastic_agent.agent.lifecycle.restart_policy import Policy

from ..checks.coverage import MANY
from ..world.job import Job
from ..world.workers import Habit
from . import faults, partitions, requests
from .faults import Fault
from .scenario import Founder, Pace, Scenario

FAULTS_END_S = 30.0
"""No fault begins later, unless it follows an announcement."""

SIZES = (1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 5, 6, 8)
STORES = (*[""] * 5, *["c10d"] * 3, *["etcd"] * 2)
"""Straight from machine to machine, or through the production drivers and one of the stores."""

MANY_IN = 400
"""One seed of so many has MANY nodes; of these, one of eight has MOST, behind the production drivers."""
MOST = 128


def scenario(seed: int, nodes: int = 0) -> Scenario:
    """What this seed stands for. `nodes`: with so many, behind the production drivers."""
    if partitions.is_one(seed) and not nodes:
        return partitions.scenario(seed)
    rng = random.Random(seed)
    many = rng.randrange(MANY_IN) == 0 or nodes > 0
    most = many and (seed % 8 == 3 or nodes > 0)
    job = _draw_job(rng, nodes or (MOST if most else MANY if many else rng.choice(SIZES)))
    job = dataclasses.replace(job, restarts=_draw_restarts(seed, job.restarts))
    habit = dataclasses.replace(_draw_habit(rng), crashes=_draw_crashes(seed, job.max_nodes))
    job, habit = _draw_settling(seed, job, habit)
    asked = tuple(_draw_requests(seed)) if not many else ()
    if asked:
        job, habit = _draw_steps(seed, job, habit)
    if many and job.restarts.window_s:
        habit = dataclasses.replace(habit, start_fails=0.0)  # some would fail in every round, forgiven without end
    store = "" if many else rng.choice(STORES)
    store = ("c10d", "etcd")[seed % 16 // 8] if most else store
    network_s = rng.choice((0.002, 0.02, 0.3) if store else (0.002, 0.1, 2.0))
    pace = Pace(rng.choice((0.001, 0.01, 0.3)), network_s, rng.choice((0.01, 0.5, 4.0)))
    unequal = rng.random() < 0.3
    return Scenario(
        seed=seed,
        nodes=nodes,
        job=job,
        habit=habit,
        pace=pace,
        echo_chance=rng.choice((0.0, 0.8)),
        unequal=unequal,
        store=store,
        late_bytes=_bytes_are_late(seed, store),
        skew_s=rng.choice((0.0, 1000.0, 50000.0, 1e6)),
        founders=tuple(_draw_founders(rng, job, unequal)),
        faults=(
            *_draw_faults(rng),
            *_draw_stranger(seed, store),
            *_draw_oneway_cut(seed),
            *_draw_takeover(seed, store),
            *_draw_store_full(seed, store),
            *_draw_rerun(seed, store),
            *_draw_static_restart(seed, job),
            *_draw_half_alive(seed),
            *_draw_pressure(seed, store),
            *_draw_preemption(seed),
            *asked,
        ),
        reads_first=store == "etcd" and seed % 4 == 1,
        again=store == "etcd" and random.Random(seed ^ 0xA6A1).random() < 0.2,
    )


def _draw_job(rng: random.Random, max_nodes: int) -> Job:
    static = rng.random() < 0.04
    return Job(
        min_nodes=max_nodes if static else rng.randint(1, max_nodes),
        max_nodes=max_nodes,
        restarts=Policy(max_restarts=rng.choice((0, 1, 1, 3))),
        grace_s=rng.choice((0.5, 3.0)),
        join_timeout_s=rng.choice((15.0, 40.0)),
        last_call_timeout_s=rng.choice((1.0, 6.0, 20.0)),
        quiet_s=rng.choice((0.2, 2.0, 8.0)),
        store_grace_s=rng.choice((2.0, 12.0)),
        exit_barrier_s=rng.choice((4.0, 25.0)),
        connect_timeout_s=rng.choice((3.0, 10.0)),
        static=static,
    )


def _draw_restarts(seed: int, restarts: Policy) -> Policy:
    rng = random.Random(seed ^ 0xBAC0FF)  # of its own, so that the rest of each seed is what it was before
    pause_min_s = rng.choice((0.0, 0.0, 0.5, 2.0))
    window_s = rng.choice((0.0, 0.0, 0.0, 6.0))
    most = (1 if window_s else 6) if _draw_crashes(seed, 1) else restarts.max_restarts
    return Policy(max_restarts=most, pause_min_s=pause_min_s, pause_max_s=4.0, window_s=window_s)


def _draw_crashes(seed: int, max_nodes: int) -> float:
    """Two rounds of three fail by it, in one job of sixteen."""
    return 0.5 / max_nodes if seed % 16 == 5 and max_nodes < MANY else 0.0


def _draw_habit(rng: random.Random) -> Habit:
    return Habit(
        work_s=rng.choice((1.0, 8.0, 20.0)),
        spread_s=rng.choice((0.1, 1.0, 15.0)),
        start_fails=rng.choice((0.0, 0.0, 0.0, 0.05)),
        ignores_term=rng.choice((0.0, 0.0, 0.4)),
        unkillable=rng.choice((0.0, 0.0, 0.5)),
        lingers=rng.choice((0.0, 0.0, 0.5)),
    )


def _draw_settling(seed: int, job: Job, habit: Habit) -> tuple[Job, Habit]:
    """In one job of four workers save before planned changes, or cannot, or take too long."""
    rng = random.Random(seed ^ 0x5E771E)
    if rng.random() < 0.75:
        return job, habit
    plain, saves_s = rng.random() < 0.2, rng.choice((0.0, 0.3, 20.0))
    habit = dataclasses.replace(habit, plain=plain, saves_s=saves_s)
    return dataclasses.replace(job, settle_s=rng.choice((1.0, 5.0))), habit


def _draw_founders(rng: random.Random, job: Job, unequal: bool) -> Iterator[Founder]:
    spares = 0 if job.static else rng.choice((0, 0, 0, 1, 2)) - rng.choice((0, 0, 1, 1))
    apart_s = rng.choice((0.01, 1.0, 5.0))
    clash = job.static and rng.random() < 0.5
    for index in range(max(1, job.max_nodes + spares)):
        nproc = rng.randint(1, 3) if unequal else 2
        preferred_rank = rng.randrange(4) if rng.random() < 0.1 else None
        if job.static:
            preferred_rank = 0 if clash else index
        yield Founder(f"n{index}", index and rng.random() * apart_s, nproc, preferred_rank)


def _draw_faults(rng: random.Random) -> Iterator[Fault]:
    until_s = rng.choice((2.0, 6.0, FAULTS_END_S, FAULTS_END_S))
    often = [*faults.KINDS, "worker_fails", "worker_fails"]
    kinds = [kind for kind in often if rng.random() < 0.6] or ["worker_fails"]
    at, after = 0.0, 0
    for ident in range(rng.choice((0, 0, 1, 1, 2, 3, 4, 6))):
        if not ident or rng.random() < 0.75:  # else at the same time as the one before
            after = rng.randint(1, 8) if rng.random() < 0.3 else 0
            at = rng.random() * 0.3 if after else rng.uniform(0.0, until_s)
        yield Fault(ident, at, rng.choice(kinds), rng.random(), rng.random(), rng.uniform(0.3, 20.0), after)


def _draw_stranger(seed: int, store: str) -> Iterator[Fault]:
    """In one job of ten on TCPStore, which accepts any client on the network."""
    if store != "c10d":
        return
    rng = random.Random(seed ^ 0x57A6E)  # of its own, so that the rest of each seed is what it was before
    if rng.random() < 0.1:
        yield Fault(
            9, rng.uniform(0.0, FAULTS_END_S / 2), "stranger", rng.random(), rng.random(), rng.uniform(0.3, 40.0)
        )


def _draw_oneway_cut(seed: int) -> Iterator[Fault]:
    """In one job of ten a node receives nothing, while its own messages arrive, as rounds begin and end."""
    rng = random.Random(seed ^ 0xDEAF)
    if rng.random() < 0.1:
        after = rng.randint(1, 6)
        yield Fault(6, rng.random() * 0.3, "cut", rng.random(), 0.9, rng.uniform(2.0, 15.0), after)
        what = rng.choice(("worker_fails", "leave", "kill", "freeze"))
        after += rng.randrange(3)
        yield Fault(7, rng.random() * 3, what, rng.random(), rng.random(), rng.uniform(0.3, 20.0), after)


def _draw_takeover(seed: int, store: str) -> Iterator[Fault]:
    """In one job of three on etcd the coordinator ends or freezes soon after an announcement."""
    if store != "etcd":
        return
    rng = random.Random(seed ^ 0xC0FFEE)
    if rng.random() < 0.3:
        what = rng.choice(("leave", "kill", "signal", "freeze"))
        leads = rng.random() * 0.4
        yield Fault(8, rng.random() * 3, what, rng.random(), leads, rng.uniform(0.3, 20.0), rng.randint(2, 8))


def _draw_store_full(seed: int, store: str) -> Iterator[Fault]:
    """In one job of five on etcd."""
    if store != "etcd":
        return
    rng = random.Random(seed ^ 0xF011)
    if rng.random() < 0.2:
        at_s, lasts_s = rng.uniform(1.0, FAULTS_END_S / 2), rng.uniform(3.0, 40.0)
        yield Fault(12, at_s, "store_full", rng.random(), rng.random(), lasts_s)


def _draw_rerun(seed: int, store: str) -> Iterator[Fault]:
    """In one job of five on etcd all agents are killed, and the job is started again."""
    if store != "etcd":
        return
    rng = random.Random(seed ^ 0x2E2077)
    if rng.random() < 0.2:
        after = rng.randint(2, 8) if rng.random() < 0.5 else 0
        at = rng.random() * 3 if after else rng.uniform(0.0, FAULTS_END_S)
        yield Fault(10, at, "rerun", rng.random(), rng.random(), rng.uniform(0.3, 20.0), after)


def _draw_static_restart(seed: int, job: Job) -> Iterator[Fault]:
    """In every other static job a node is killed and started again while nodes join."""
    if not job.static:
        return
    rng = random.Random(seed ^ 0x57A71C)
    if rng.random() < 0.5:
        yield Fault(11, rng.uniform(0.0, 5.0), "restart", rng.random(), rng.random(), rng.uniform(0.3, 12.0))


def _draw_half_alive(seed: int) -> Iterator[Fault]:
    """In one job of eight a loop stands still or a thread receives nothing, while the other threads live, and soon a
    round ends that its node has a place in."""
    rng = random.Random(seed ^ 0xA11FE)
    if rng.random() < 0.125:
        after = rng.randint(1, 6)
        what, lasts_s = rng.choice(("stall", "deafen")), rng.choice((3.0, 20.0, 150.0))
        yield Fault(13, rng.random() * 3, what, rng.random(), rng.random(), lasts_s, after)
        what = rng.choice(("worker_fails", "worker_fails", "leave", "kill"))
        yield Fault(14, rng.random() * 8, what, rng.random(), rng.random(), 1.0, after + rng.randrange(2))


def _draw_pressure(seed: int, store: str) -> Iterator[Fault]:
    """In one job of five on TCPStore its server has trouble of its own: lies, no descriptors, a request that takes
    long."""
    if store != "c10d":
        return
    rng = random.Random(seed ^ 0x9E55)
    if rng.random() < 0.2:
        what = rng.choice(("liar", "occupant", "server_hangs"))
        yield Fault(15, rng.uniform(0.0, FAULTS_END_S / 2), what, rng.random(), rng.random(), rng.uniform(0.3, 40.0))


def _draw_preemption(seed: int) -> Iterator[Fault]:
    """In one job of ten a worker asks for the end."""
    rng = random.Random(seed ^ 0x75)
    if rng.random() < 0.1:
        yield Fault(16, rng.uniform(0.0, FAULTS_END_S / 2), "worker_preempts", rng.random(), rng.random())


def _draw_requests(seed: int) -> Iterator[Fault]:
    """In one job of ten somebody asks something of all ranks."""
    rng = random.Random(seed ^ 0xA5CED)
    if rng.random() < 0.1:
        until_s, kinds = rng.choice((6.0, FAULTS_END_S)), [*requests.KINDS, "save_switch", "kill_switch"]
        for number in range(17, 17 + rng.choice((1, 1, 2, 3))):
            after = rng.randint(1, 8) if rng.random() < 0.4 else 0
            at = rng.random() * 3 if after else rng.uniform(0.0, until_s)
            yield Fault(number, at, rng.choice(kinds), rng.random(), rng.random(), rng.uniform(0.3, 20.0), after)


def _draw_steps(seed: int, job: Job, habit: Habit) -> tuple[Job, Habit]:
    """How workers come to the boundaries at which they act; most save before planned changes."""
    rng = random.Random(seed ^ 0x57E95)
    step_s, attaches_s = rng.choice((0.05, 0.5, 2.0)), rng.choice((0.0, 0.5, 3.0))
    plain, saves_s = rng.random() < 0.1, rng.choice((0.0, 0.3, 0.3, 4.0))
    habit = dataclasses.replace(habit, plain=plain, saves_s=saves_s, step_s=step_s, attaches_s=attaches_s)
    return dataclasses.replace(job, settle_s=rng.choice((0.0, 1.0, 5.0, 60.0))), habit


def _bytes_are_late(seed: int, store: str) -> bool:
    """In one job of two on TCPStore."""
    return store == "c10d" and seed % 2 == 0
