"""The library: agents beside each other in one process, watched, drained and stopped."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import tempfile
import threading
from pathlib import Path

import pytest

from elastic_agent import (
    AgentEvent,
    KillSwitch,
    LaunchConfig,
    NodeAgent,
    OtherJob,
    Phase,
    Preempted,
    StoppedBySignal,
    UsageError,
    launch,
)
from elastic_agent.launcher.in_worker.functions import shown
from elastic_agent.rendezvous.memory_store import MemoryStore
from support.desk import WORKER, Desk
from support.harness import ThreadNode
from support.rigs.embedded import HANDLED, ONE, Embedded, Watcher, at_desk, failure_of
from support.rigs.relays import wait_for
from support.workers import calls


def test_a_thread_that_is_not_the_main_one_may_launch_and_touches_no_signal(embedded: Embedded, desk: Desk) -> None:
    """The embedding program's signal handlers stay in place."""
    before = [signal.getsignal(signum) for signum in HANDLED]
    node = embedded.start(at_desk(desk), WORKER)
    worker = desk.wait_world(1)[0]
    assert [signal.getsignal(signum) for signum in HANDLED] == before
    worker.order("exit 0")
    assert node.wait() == 0
    assert node.results == {0: None}


def test_two_launches_at_once_in_one_process_are_separate_jobs(embedded: Embedded, desk: Desk) -> None:
    """One job fails and its workers are stopped; those of the other go on."""
    first = embedded.start(at_desk(desk, env={"TEST_NODE": "first", "TEST_DESK": desk.path}), WORKER, name="first")
    second = embedded.start(at_desk(desk, env={"TEST_NODE": "second", "TEST_DESK": desk.path}), WORKER, name="second")
    desk.wait(lambda: len(desk.workers) == 2, "a worker of each job")
    of = {worker.node: worker for worker in desk.workers}
    of["first"].order("exit 3")
    assert first.wait() == 1
    of["second"].order("ping")
    desk.wait(lambda: "done ping" in of["second"].sent, "an answer of the other job's worker")
    of["second"].order("exit 0")
    assert (second.wait(), second.results) == (0, {0: None})


def test_nodes_embedded_in_one_process_share_a_job(embedded: Embedded) -> None:
    """On a store in memory each node gets the results of its own ranks."""
    store = MemoryStore()
    config = LaunchConfig(min_nodes=2, max_nodes=2, nproc_per_node=2, rdzv_configs={"last_call_quiet": 0.2})
    a = embedded.start(config, calls.identity, name="a", store=store.host())
    b = embedded.start(config, calls.identity, name="b", store=store.guest())
    assert (a.wait(), b.wait()) == (0, 0)
    assert a.results is not None
    assert b.results is not None
    assert sorted(a.results | b.results) == [0, 1, 2, 3]
    assert len(a.results) == len(b.results) == 2
    assert {result[:2] for result in (a.results | b.results).values()} == {(rank, 4) for rank in range(4)}


def test_a_store_of_the_callers_own_brings_no_fences(embedded: Embedded, desk: Desk) -> None:
    """Nobody can be cut off from it alone, so no thread asks other nodes, and none answers."""
    store = MemoryStore()
    node = embedded.start(at_desk(desk), WORKER, store=store.host())
    worker = desk.wait_world(1)[0]
    names = {thread.name for thread in threading.enumerate()}
    assert "elastic-agent-watcher" in names
    assert not names & {"elastic-agent-asker", "elastic-agent-witness"}
    worker.order("exit 0")
    assert node.wait() == 0


def test_functions_and_their_plain_arguments_distinguish_jobs(embedded: Embedded, desk: Desk) -> None:
    """Another function, or another plain argument, is another job; the error has its own type and status."""
    store = MemoryStore()
    config = LaunchConfig(min_nodes=2, max_nodes=2, rdzv_configs={"last_call_quiet": 0.2})
    a = embedded.start(config, calls.identity, "one", name="a", store=store.host())
    a.wait_text("waiting for a place")
    for other in ((calls.identity, "two"), (calls.environment,)):
        b = embedded.start(config, *other, name="b", store=store.guest())
        assert b.wait() == 78
        assert isinstance(b.error, OtherJob)
        assert "identity" in str(b.error)
    c = embedded.start(config, calls.identity, "one", name="c", store=store.guest())
    assert (a.wait(), c.wait()) == (0, 0)


def test_a_value_that_looks_different_in_each_process_distinguishes_no_jobs() -> None:
    """Only the type of such an argument counts."""
    assert shown(object()) == shown(object())
    assert shown(1) != shown(2)
    assert shown("1") != shown(1)


def test_an_unused_spare_returns_no_results(embedded: Embedded, desk: Desk) -> None:
    """A node that the job did not need has succeeded, and has no results."""
    store = MemoryStore()
    config = at_desk(desk, rdzv_configs={"last_call_quiet": 0.2})
    a = embedded.start(config, WORKER, name="a", store=store.host())
    world = desk.wait_world(1)
    spare = embedded.start(config, WORKER, name="s", store=store.guest())
    spare.wait_text("spare")
    assert spare.agent.status().spare
    world[0].order("exit 0")
    assert (a.wait(), spare.wait()) == (0, 0)
    assert (a.results, spare.results) == ({0: None}, {})


def test_launching_again_and_again_leaks_nothing() -> None:
    """After the first launch, which may import modules, no launch adds a thread, a descriptor or a private file."""

    def held() -> tuple[int, int, int]:
        private = [name for name in os.listdir(tempfile.gettempdir()) if "_call_" in name]
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(private)

    launch(ONE, calls.identity)
    first = held()
    for _ in range(3):
        launch(ONE, calls.identity)
        failure_of(ONE, calls.leave, 1)
    assert held() == first
    assert first[2] == 0


# -- watching and controlling -----------------------------------------------------------------------------------------


def test_events_come_in_order_as_they_happen_with_their_reason(embedded: Embedded) -> None:
    """A failure, a restart and the end, as a scheduler sees them: on the agent's thread, while it runs."""
    seen = Watcher()
    node = embedded.start(LaunchConfig(max_restarts=1), calls.fail_once, name="n", on_event=seen)
    assert node.wait() == 0
    again = [Phase.JOINING, Phase.WORKING, Phase.STOPPING]
    assert seen.phases == [*again, *again, Phase.FINISHED, Phase.ENDING, Phase.ENDED]
    assert all(event.because and event.happened and event.name == "n" for event in seen.events)
    assert [event.at_s for event in seen.events] == sorted(event.at_s for event in seen.events)
    assert seen.threads == {"test-agent-n"}
    failures = [event for event in seen.events if event.failure is not None]
    assert [(event.happened, event.round) for event in failures] == [("WorkerExited", 1)]
    failure = failures[0].failure
    assert failure is not None
    assert (failure.rank, failure.exit_code) == (0, 1)
    assert failure.message == "RuntimeError: only the first time"
    working = [event for event in seen.events if event.phase is Phase.WORKING]
    assert [(event.round, event.restarts_used) for event in working if event.happened == "RoundSeen"] == [
        (1, 0),
        (2, 1),
    ]
    assert [(member.name, member.nproc) for member in working[0].members] == [("n", 1)]


def test_events_can_be_sent_to_another_process(embedded: Embedded) -> None:
    """A scheduler may collect events of many nodes through a queue."""
    seen = Watcher()
    assert embedded.start(ONE, calls.leave, 4, on_event=seen).wait() == 1
    assert pickle.loads(pickle.dumps(seen.events)) == seen.events
    last = seen.events[-1]
    assert last.phase is Phase.ENDED
    assert [event.failure.exit_code for event in seen.events if event.failure is not None][-1] == 4


def test_a_callback_that_raises_does_not_affect_the_job(caplog: pytest.LogCaptureFixture) -> None:
    """The job goes on, and the log has the callback's traceback."""

    def watch(event: AgentEvent) -> None:
        raise KeyError("a mistake of the scheduler")

    with caplog.at_level(logging.ERROR, logger="elastic_agent"):
        assert launch(ONE, calls.identity, on_event=watch) == {0: (0, 1, ())}
    assert "a mistake of the scheduler" in caplog.text


def test_who_is_told_sentences_may_raise_too(caplog: pytest.LogCaptureFixture) -> None:
    """As where they go to a connection that is gone. It ended the job."""

    def tell(text: str, routine: bool) -> None:
        raise OSError(f"nobody reads {text}")

    agent = NodeAgent(LaunchConfig(max_restarts=1), calls.fail_once, tell=tell)
    with caplog.at_level(logging.ERROR, logger="elastic_agent"):
        assert agent.run() == {0: ("1", "2")}
    assert "OSError: nobody reads worker failed: rank 0" in caplog.text


def test_an_agent_that_has_ended_is_asked_for_nothing() -> None:
    """The answers said that it would end otherwise than it had."""
    agent = NodeAgent(ONE, calls.identity, name="n")
    agent.run()
    assert agent.drain().text.startswith("n has ended already: this node's workers all finished")
    assert agent.stop().text == agent.drain().text


def test_status_can_be_read_before_the_run_during_it_and_after(embedded: Embedded, desk: Desk) -> None:
    """It is a snapshot, from any thread, and changes nothing."""
    agent = NodeAgent(at_desk(desk, nproc_per_node=2, max_restarts=1), WORKER, name="n")
    assert (agent.status().phase, agent.status().name, agent.status().worker_pids) == (Phase.CONNECTING, "n", {})
    node = ThreadNode("n", agent)
    embedded.nodes.append(node)
    node.start()
    world = desk.wait_world(2)
    world[1].order("exit 3")
    world = desk.wait_world(2, after=1)
    wait_for(lambda: len(agent.status().worker_pids) == 2)
    meanwhile = agent.status()
    assert (meanwhile.phase, meanwhile.round, meanwhile.group_rank, meanwhile.world_size) == (Phase.WORKING, 2, 0, 2)
    assert (meanwhile.restarts_used, meanwhile.max_restarts, meanwhile.spare, meanwhile.hosting) == (1, 1, False, True)
    assert meanwhile.worker_pids == {worker.rank: worker.pid for worker in world}
    assert [member.name for member in meanwhile.members] == ["n"]
    assert os.path.isdir(meanwhile.log_dir)
    for worker in world:
        worker.order("exit 0")
    assert node.wait() == 0
    assert (agent.status().phase, agent.status().worker_pids) == (Phase.ENDED, {})


def test_draining_stops_the_workers_within_their_grace_and_raises_preempted(embedded: Embedded, desk: Desk) -> None:
    """A drained node exits 75 with the scheduler's own reason; its workers got SIGTERM."""
    node = embedded.start(at_desk(desk), WORKER)
    world = desk.wait_world(1)
    node.agent.drain("the machine is needed elsewhere")
    assert node.wait() == 75
    assert isinstance(node.error, Preempted)
    assert node.error.node == "one"
    assert "the machine is needed elsewhere" in str(node.error)
    desk.wait_gone(world)


def test_the_others_go_on_without_a_drained_node(embedded: Embedded, desk: Desk) -> None:
    """A drained node announces its departure, so the job re-forms at once, without waiting for a lease."""
    store = MemoryStore()
    config = at_desk(desk, max_nodes=2, rdzv_configs={"last_call_quiet": 0.5, "lease": 60})
    a = embedded.start(config, WORKER, name="a", store=store.host())
    b = embedded.start(config, WORKER, name="b", store=store.guest())
    world = desk.wait_world(2)
    b.agent.drain()
    assert b.wait() == 75
    again = desk.wait_world(1, after=world[0].round)
    again[0].order("exit 0")
    assert a.wait() == 0


def test_a_kill_switch_raises_from_a_launch_before_the_start_and_while_the_job_runs(
    embedded: Embedded, desk: Desk, tmp_path: Path
) -> None:
    """Its workers, which have no step boundary, are stopped; where the file is there already, none is started."""
    switch = tmp_path / "stop"
    config = at_desk(desk, kill_switch=switch)
    node = embedded.start(config, WORKER)
    world = desk.wait_world(1)
    switch.write_text("the budget is spent\n")
    assert node.wait() == 83
    assert isinstance(node.error, KillSwitch)
    assert "the budget is spent" in str(node.error)
    desk.wait_gone(world)
    with pytest.raises(KillSwitch, match="no worker was started") as raised:
        launch(config, WORKER)
    assert raised.value.exit_code == 83
    assert len(desk.workers) == 1


def test_stopping_ends_as_sigterm_does_and_a_second_time_at_once(embedded: Embedded, desk: Desk) -> None:
    """StoppedBySignal with status 143; a worker that ignores SIGTERM is killed when asked again."""
    node = embedded.start(at_desk(desk, shutdown_timeout=1000), WORKER)
    worker = desk.wait_world(1)[0]
    worker.order(f"ignore {int(signal.SIGTERM)}")
    desk.wait(lambda: any(said.startswith("done ignore") for said in worker.sent), "the worker to ignore SIGTERM")
    node.agent.stop()
    node.wait_text("stopped by this program")
    assert not worker.gone.is_set()
    node.agent.stop()
    assert node.wait() == 143
    assert isinstance(node.error, StoppedBySignal)
    assert node.error.signum == signal.SIGTERM


def test_a_drain_before_the_run_takes_effect() -> None:
    """A scheduler may drain an agent at once, whether or not its thread has called `run`."""
    agent = NodeAgent(ONE, calls.wait_for_ever)
    agent.drain("changed its mind")
    with pytest.raises(Preempted, match="changed its mind"):
        agent.run()


def test_a_stop_says_who_asked_and_why() -> None:
    """No signal came, so none is named; the exit status is that of SIGTERM."""
    agent = NodeAgent(ONE, calls.wait_for_ever)
    agent.stop("the disk is\nreplaced")
    with pytest.raises(StoppedBySignal, match=r"^stopped by this program: the disk is replaced$") as stopped:
        agent.run()
    assert (stopped.value.exit_code, stopped.value.signum) == (143, 15)


def test_requests_after_the_agent_has_ended_change_nothing() -> None:
    """A caller may drain or stop an agent whose job has just ended."""
    agent = NodeAgent(ONE, calls.identity)
    assert agent.run() == {0: (0, 1, ())}
    agent.drain()
    agent.stop()
    assert agent.status().phase is Phase.ENDED


def test_an_agent_runs_once() -> None:
    """A second run is refused; an agent that is closed instead of run cannot be run."""
    agent = NodeAgent(ONE, calls.identity)
    agent.run()
    with pytest.raises(UsageError, match="make another"):
        agent.run()
    unused = NodeAgent(ONE, calls.identity)
    unused.close()
    with pytest.raises(UsageError, match="make another"):
        unused.run()
