"""The section "The host of the store" of docs/failover-contract.md: the agent that hosts the store is killed, and other
nodes may host it: all that --rdzv-endpoint lists or, where it names one node, all members."""

from __future__ import annotations

import itertools
import operator
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from support.desk import Worker, restarts_of, worker_of
from support.harness import Cluster
from support.network import free_port, virtual_switch, why_unavailable
from support.procfs import connections, slowed

AGAIN_S = 3.0
"""From the end of the host to workers of the next round; measured are 0.5 to 1.1 s."""


@pytest.fixture(params=["several endpoints", "one endpoint"])
def followed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """On c10d, with three nodes that may host the store."""
    with closing(Cluster("c10d", tmp_path, nnodes="1:3")) as made:
        if request.param == "several endpoints":
            made.endpoint = ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
        yield made


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Cluster]:
    """On c10d, where --rdzv-endpoint names one node. It begins no job before the others can have told it of theirs."""
    with closing(Cluster("c10d", tmp_path, nnodes="1:3", conf={"last_call_quiet": 3})) as made:
        yield made


def three(cluster: Cluster, **conf: float) -> list[Worker]:
    """The agents a (which hosts), b and c, with a worker each."""
    cluster.start("a", conf=conf)
    cluster.desk.wait_world(1)
    for name in ("b", "c"):
        cluster.start(name, conf=conf)
    world = cluster.desk.wait_world(3)
    await_links(cluster)
    return world


def await_links(cluster: Cluster) -> None:
    """Until each agent is connected to the first one, which hosts, and to each other, beside the store's endpoints: who
    dies before that is not known to be dead."""
    served = {int(one.rpartition(":")[2]) for one in cluster.endpoint.split(",")}
    deadline = time.monotonic() + 20.0
    while True:
        each = [connections(node.process.pid) for node in cluster.nodes.values()]
        between = [{(own, far) for own, far in one if not {own, far} & served} for one in each]
        links = [sum((far, own) in other for own, far in one) for one, other in itertools.combinations(between, 2)]
        both = [1 if number < len(each) - 1 else 2 for number in range(len(links))]  # the host connects to nobody
        if all(map(operator.ge, links, both)):
            return
        assert time.monotonic() < deadline, f"links of each two agents after 20 s: {links}"
        time.sleep(0.02)


def test_another_node_hosts_the_store_and_one_job_goes_on(followed: Cluster) -> None:
    """The host is killed: the others train again within 3 s, what counts is kept, and its node, started again with the
    same command, joins that job. The same of the next host."""
    world = three(followed)
    worker_of(world, "b").order("exit 3")
    world = followed.desk.wait_world(3, after=world[0].round)
    followed.nodes["a"].vanish()
    began = time.monotonic()
    again = followed.desk.wait_world(2, after=world[0].round)
    assert time.monotonic() - began < slowed(AGAIN_S)
    followed.desk.wait_gone([worker_of(world, "a")])
    restarts = {worker.node: worker.restarts for worker in again}
    followed.start("a2", hosts=True, conf={"last_call_quiet": 3})
    whole = followed.desk.wait_world(3, after=again[0].round)
    assert {worker.node: worker.restarts for worker in whole} == {**restarts, "a2": 0}
    host = next(name for name in ("b", "c") if "this node coordinates" in followed.nodes[name].text())
    followed.nodes[host].vanish()
    followed.desk.wait_world(2, after=whole[0].round)
    followed.finish()
    rest = [node for name, node in followed.nodes.items() if name not in ("a", host)]
    assert [node.wait() for node in rest] == [0, 0]


def test_of_two_nodes_the_one_that_is_left_goes_on(followed: Cluster) -> None:
    """It knows that the agent is dead, as a living kernel says; and at the start it was said what it would do."""
    followed.start("a", nnodes="1:2")
    followed.desk.wait_world(1)
    b = followed.start("b", nnodes="1:2")
    world = followed.desk.wait_world(2)
    b.wait_text("two nodes: should the agent that hosts the store be killed, the other goes on")
    followed.nodes["a"].vanish()
    followed.desk.wait_world(1, after=world[0].round)
    followed.finish()
    assert b.wait() == 0


def test_the_next_host_is_killed_as_well(followed: Cluster) -> None:
    """Both die at once, whoever of them was to host next: the third node goes on."""
    world = three(followed)
    followed.nodes["a"].vanish()
    followed.nodes["b"].vanish()
    followed.desk.wait_world(1, after=world[0].round)
    followed.finish()
    assert followed.nodes["c"].wait() == 0


def test_the_host_is_killed_while_others_stop(followed: Cluster) -> None:
    """A failure has ended the round, and the host is killed while a worker takes its time to stop."""
    world = three(followed)
    slow = worker_of(world, "c")
    followed.desk.ask(slow, "ignore 15")
    worker_of(world, "b").order("exit 3")
    followed.nodes["c"].wait_text("is over")
    followed.nodes["a"].vanish()
    followed.nodes["b"].wait_text("the store answers again")
    slow.order("exit 0")
    followed.desk.wait_world(2, after=world[0].round)
    followed.finish()
    assert [followed.nodes[name].wait() for name in ("b", "c")] == [0, 0]


def test_a_host_that_leaves_hands_the_store_over(followed: Cluster) -> None:
    """It ends while the others work on, at the price of any node's leaving: one round anew, and no restart. The next
    host is asked to leave when its workers have finished, which disturbs nobody."""
    world = three(followed)
    followed.nodes["a"].terminate()
    began = time.monotonic()
    again = followed.desk.wait_world(2, after=world[0].round)
    assert time.monotonic() - began < AGAIN_S
    assert followed.nodes["a"].wait() == 143
    for worker in again:
        followed.nodes[worker.node].wait_text("the store answers again")
        followed.desk.ask(worker, "ping")
    assert restarts_of(again) == {"b": 0, "c": 0}
    hosts: list[str] = []
    while not hosts:
        followed.desk.ask(again[0], "ping")
        hosts = [name for name in ("b", "c") if "this node coordinates" in followed.nodes[name].text()]
    (host,) = hosts
    other = worker_of(again, "c" if host == "b" else "b")
    worker_of(again, host).order("exit 0")
    followed.nodes[host].wait_text("the finalisation barrier ends in")
    followed.nodes[host].terminate()
    assert followed.nodes[host].wait() == 143
    followed.desk.ask(other, "ping")
    other.order("exit 0")
    assert followed.nodes[other.node].wait() == 0
    assert max(worker.round for worker in followed.desk.workers) == again[0].round


def test_a_host_that_leaves_before_the_first_round_serves_until_all_know_of_it(followed: Cluster) -> None:
    """Else those that have not read of it know neither its voters nor where another host may be."""
    a = followed.start("a", nnodes="3")
    a.wait_text("1 of at least 3 nodes joined")
    others = [followed.start("b", nnodes="3")]
    others[0].wait_text("2 of at least 3 nodes joined")
    a.terminate()
    a.wait_text("serving the store until the other nodes have ended; another signal stops that")
    others += [followed.start(name, nnodes="3") for name in "cd"]
    world = followed.desk.wait_world(3)
    assert a.wait() == 143
    for node in others:
        node.wait_text("the store answers again")
    followed.assert_undisturbed(world)
    followed.finish()
    assert [node.wait() for node in others] == [0, 0, 0]


def test_a_host_that_has_finished_is_killed(followed: Cluster) -> None:
    """Its workers are done and the others work on: no round begins anew, and the job succeeds."""
    world = three(followed)
    worker_of(world, "a").order("exit 0")
    for name in ("b", "c"):
        # What most have read is kept.
        followed.nodes[name].wait_text("to finish; the finalisation barrier ends in")
    rest = [worker for worker in world if worker.node != "a"]
    followed.nodes["a"].vanish()
    for name in ("b", "c"):
        followed.nodes[name].wait_text("the store answers again")
    for worker in rest:
        followed.desk.ask(worker, "ping")
    assert max(worker.round for worker in followed.desk.workers) == world[0].round
    for worker in rest:
        worker.order("exit 0")
    assert [followed.nodes[name].wait() for name in ("b", "c")] == [0, 0]


def test_a_newcomer_that_knows_the_old_endpoint_waits_until_its_node_is_back(one: Cluster) -> None:
    """Nobody serves there while that node is away; once it is started again it says where the job is, and both join."""
    one.start("a", nnodes="1:4")
    one.desk.wait_world(1)
    for name in ("b", "c"):
        one.start(name, nnodes="1:4")
    world = one.desk.wait_world(3)
    one.nodes["a"].vanish()
    again = one.desk.wait_world(2, after=world[0].round)
    late = one.start("d", nnodes="1:4", conf={"read_timeout": 60})
    late.wait_text(f"waiting for {one.endpoint}")
    back = one.start("a2", nnodes="1:4", hosts=True)
    back.wait_text("joining it there")
    whole = one.desk.wait_world(4, after=again[0].round)
    assert {worker.node for worker in whole} == {"a2", "b", "c", "d"}
    assert [worker.env["TORCHELASTIC_RUN_ID"] for worker in whole] == [one.run_id] * 4
    one.finish()
    assert [one.nodes[name].wait() for name in ("a2", "b", "c", "d")] == [0, 0, 0, 0]


def test_a_host_that_is_killed_before_the_first_round_begins_a_new_job_once_it_is_started_again(one: Cluster) -> None:
    """At once: as no round has begun it has no successor. Its guest is told so."""
    conf = {"last_call_quiet": 3, "lease": 15}  # a hope of two leases lasts until the node is back
    one.start("a", nnodes="3", conf=conf)
    one.nodes["a"].wait_text("1 of at least 3 nodes joined")
    guest = one.start("b", nnodes="3", conf=conf)
    guest.wait_text("2 of at least 3 nodes joined")
    one.nodes["a"].vanish()
    guest.wait_text("does not answer")
    one.start("a2", nnodes="3", conf=conf, hosts=True)
    assert guest.wait() == 80
    for name in ("c", "d"):
        one.start(name, nnodes="3", conf=conf)
    one.desk.wait_world(3)
    assert "joining it there" not in one.nodes["a2"].text()
    one.finish()
    assert [one.nodes[name].wait() for name in ("a2", "c", "d")] == [0, 0, 0]


def test_of_five_nodes_the_two_that_would_host_are_killed_at_once(one: Cluster) -> None:
    """A lease that a busy test machine does not use up: of those that are left each one must be able to vote."""
    conf = {"last_call_quiet": 3, "lease": 15}
    one.start("a", nnodes="1:5", conf=conf)
    one.desk.wait_world(1)
    for name in ("b", "c", "d", "e"):
        one.start(name, nnodes="1:5", conf=conf)
    world = one.desk.wait_world(5)
    one.nodes["a"].vanish()
    worker = next(worker for worker in world if worker.rank == 1)
    one.nodes[worker.node].vanish()
    again = one.desk.wait_world(3, after=world[0].round)
    one.finish()
    assert [one.nodes[worker.node].wait() for worker in again] == [0, 0, 0]


def test_a_returning_node_that_needs_no_other_is_told_before_its_round_begins(one: Cluster) -> None:
    """With a fixed number of nodes: those that are left wait for it, and it would wait for them."""
    one.start("a", nnodes="2")
    one.start("b", nnodes="2")
    world = one.desk.wait_world(2)
    one.nodes["a"].vanish()
    one.nodes["b"].wait_text("waiting up to 600 s for more")
    one.start("a2", nnodes="2", hosts=True)
    again = one.desk.wait_world(2, after=world[0].round)
    assert {worker.node for worker in again} == {"a2", "b"}
    one.finish()
    assert [one.nodes[name].wait() for name in ("a2", "b")] == [0, 0]


def test_of_two_nodes_the_guest_goes_on_without_a_silent_host_if_that_was_asked_for(one: Cluster) -> None:
    """The host's agent is frozen for long, which is no evidence that it is dead; its worker runs on meanwhile. Once it
    runs again it finds the new host, its worker is killed, and it joins."""
    conf = {"survivor": "go", "beat": 0.4, "lease": 3, "last_call_quiet": 0.5}
    a = one.start("a", nnodes="1:2", conf=conf)
    one.desk.wait_world(1)
    b = one.start("b", nnodes="1:2", conf=conf)
    world = one.desk.wait_world(2)
    b.wait_text("two nodes and survivor=go")
    a.terminate(signal.SIGSTOP)
    (again,) = one.desk.wait(lambda: [each for each in one.desk.workers if each.round > world[0].round], "a next round")
    assert again.node == "b"
    b.wait_text("survivor=go was given: hosting the store")
    one.desk.ask(worker_of(world, "a"), "ping")
    a.terminate(signal.SIGCONT)
    one.desk.wait_gone([worker_of(world, "a")])
    one.desk.wait_world(2, after=again.round)
    one.finish()
    assert [a.wait(), b.wait()] == [0, 0]


LEASE_S = 3.0
SHORT = {"beat": 0.5, "lease": LEASE_S, "last_call_quiet": 0.5}


@pytest.mark.parametrize("listed", [False, True], ids=["one endpoint", "several endpoints"])
@pytest.mark.skipif(bool(why_unavailable()), reason=why_unavailable() or "there are namespaces")
def test_a_host_without_power_is_replaced_by_the_majority(tmp_path: Path, *, listed: bool) -> None:
    """Its packets are dropped, so no kernel says that it is dead. The others train again within a lease and 3 s, and no
    worker of the host runs then. Once it is back, it joins them."""
    with ExitStack() as held:
        switch = held.enter_context(virtual_switch())
        for name in "abc":
            switch.add(name)
        cluster = held.enter_context(closing(Cluster("c10d", tmp_path, nnodes="2:3", conf=SHORT)))
        cluster.endpoint = ",".join(f"{switch.addresses[name]}:29400" for name in ("abc" if listed else "a"))
        a = cluster.start("a", within=switch.within("a"))
        others = [cluster.start(name, within=switch.within(name)) for name in "bc"]
        world = cluster.desk.wait_world(3)
        switch.cut("a")
        began = time.monotonic()
        again = cluster.desk.wait_world(2, after=world[0].round)
        assert time.monotonic() - began < slowed(LEASE_S + AGAIN_S)
        assert restarts_of(again) == {"b": 0, "c": 0}
        cluster.desk.wait_gone([worker_of(world, "a")], bound_s=0.5)
        switch.mend("a")
        a.wait_text("joining it there")
        whole = cluster.desk.wait_world(3, after=again[0].round)
        assert restarts_of(whole) == {"a": 0, "b": 0, "c": 0}
        cluster.finish()
        assert [node.wait() for node in (a, *others)] == [0, 0, 0]


def test_a_host_that_stands_still_for_long_is_replaced_and_joins_again(followed: Cluster) -> None:
    """Its worker runs on while its agent is frozen, and is killed before those of the next round start. So is the next
    host, wherever it serves."""
    whole = three(followed, **SHORT)
    for nodes in ("a", "bc"):
        (host,) = [name for name in nodes if name == "a" or "this node coordinates" in followed.nodes[name].text()]
        world, agent = whole, followed.nodes[host]
        agent.terminate(signal.SIGSTOP)
        followed.desk.wait_gone([worker_of(world, host)])
        assert max(worker.round for worker in followed.desk.workers) == world[0].round
        again = followed.desk.wait_world(2, after=world[0].round)
        agent.terminate(signal.SIGCONT)
        agent.wait_text("joining it there")
        whole = followed.desk.wait_world(3, after=again[0].round)
        assert restarts_of(whole) == {"a": 0, "b": 0, "c": 0}
    followed.finish()
    assert [node.wait() for node in followed.nodes.values()] == [0, 0, 0]


def test_a_host_that_lost_most_voters_reads_what_it_announces(one: Cluster) -> None:
    """They are frozen, so the fence of its own workers is passed. It says for whom it waits, and not of its own store
    that it does not answer."""
    a = one.start("a", nnodes="2:3", conf=SHORT)
    others = [one.start(name, nnodes="2:3", conf=SHORT) for name in "bc"]
    world = one.desk.wait_world(3)
    for agent in others:
        agent.terminate(signal.SIGSTOP)
    a.wait_text("(3 s so far)")
    a.wait_text("(9 s so far)")
    assert "does not answer" not in a.text()
    for agent in others:
        agent.terminate(signal.SIGCONT)
    one.desk.wait_world(3, after=world[0].round)
    one.finish()
    assert [node.wait() for node in (a, *others)] == [0, 0, 0]


def test_a_host_that_is_silent_for_the_only_voter_that_is_left_is_not_replaced(tmp_path: Path) -> None:
    """Of at most three nodes two are there: half is no majority, and both go on behind the silence."""
    with closing(Cluster("c10d", tmp_path, nnodes="1:3", conf=SHORT)) as cluster:
        a = cluster.start("a")
        cluster.desk.wait_world(1)
        cluster.start("b")
        world = cluster.desk.wait_world(2)
        a.terminate(signal.SIGSTOP)
        cluster.nodes["b"].wait_text("the host was silent for 3 s")
        cluster.desk.wait_gone([worker_of(world, "b")])  # by its fence
        a.terminate(signal.SIGCONT)
        cluster.nodes["b"].wait_text("which hosts the store, answers again")
        cluster.desk.wait_world(2, after=world[0].round)
        cluster.finish()
        assert [node.wait() for node in cluster.nodes.values()] == [0, 0]
