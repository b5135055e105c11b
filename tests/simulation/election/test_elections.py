"""Elections of a store's host: seeds, schedules, and planted bugs that break their promises."""

from __future__ import annotations

from collections import Counter

import pytest

from ..mutants.planting import Mutant
from . import orders, play
from .bugs import BUGS, BY_ORDERS, BY_SCHEDULE
from .cluster import START_MOST_S, Broken, Cluster
from .hosting import LEASE_S
from .orders import Bounds

SEEDS = 100
FOUND = {
    "a minority elects": 0,
    "half of the voters elect": 17,
    "a promise is broken": 16,
    "a candidate without the newest announcement is elected": 150,
    "newcomers elect alone": 801,
    "a living voter without a place is forgotten": 326,
}
"""A seed in which a planted bug breaks a promise."""
MOST = 20_000
"""States; a search that needs more has not ended."""


def replaced(*, reads: bool = True) -> Cluster:
    """n1 is cut off, so a round with n2 begins without it; then the host dies as n1 is back. `reads`: n1 has read of
    that round."""
    cluster = play.job(0, 2)
    cluster.run(4.0)
    cluster.cut = {("n0", "n1"), ("n1", "n0")}
    play.arrive(cluster)
    cluster.run(14.5)
    content = cluster.hosted("n0").content
    assert content is not None
    assert (content.number, content.members, content.running) == (2, ("n0", "n2"), True)
    cluster.reads_lost = not reads
    if not reads:
        cluster.cut.clear()
        cluster.run(15.5)
    cluster.die("n0")
    cluster.run(15.7)
    cluster.cut.clear()
    cluster.run(30.0)
    return cluster


def test_no_two_nodes_are_elected_and_nothing_is_lost_that_a_majority_had_read() -> None:
    """And the seeds reach what could break that."""
    reached = sum((play.play(seed).reached for seed in range(SEEDS)), Counter[str]())
    assert reached["elected"] > SEEDS / 2
    for what in ("voted no", "withdrew", "kill host and the next", "kill host as a round begins", "freeze host", "cut"):
        assert reached[what], what


@pytest.mark.parametrize("nodes", [2, 3, 5, 9])
@pytest.mark.parametrize("replacements", [False, True], ids=["down to the last node", "each is replaced"])
def test_kills_of_one_host_after_the_other_are_survived(nodes: int, replacements: bool) -> None:
    """A turn of each voter and the start of a server later, the store is there again."""
    for seed in range(3):
        cluster = play.job(seed, nodes)
        for number in range(1, nodes):
            cluster.run(number * 12.0)
            (host,) = play.hosts(cluster)
            if replacements:
                play.arrive(cluster)
                cluster.run(cluster.now + 3.0)
            cluster.die(host)
        cluster.run(nodes * 12.0)
        assert cluster.reached["elected"] == len(cluster.gap_s) == nodes - 1
        assert max(cluster.gap_s) < START_MOST_S + 1.0


def test_of_hosts_that_leave_none_hosts_beside_the_next_and_nothing_is_lost() -> None:
    """Under all faults, and whatever was read when the goodbye came."""
    reached = sum((play.play(seed, leaves=True).reached for seed in range(SEEDS)), Counter[str]())
    assert reached["left"] > SEEDS / 2
    assert reached["read behind a goodbye"]


@pytest.mark.parametrize("nodes", [2, 3, 5, 9])
def test_a_host_that_leaves_is_followed_without_a_wait(nodes: int) -> None:
    """By a turn of a voter: nobody waits for a connection to break."""
    for seed in range(5):
        cluster = play.job(seed, nodes)
        cluster.run(10.0)
        play.leave(cluster)
        cluster.run(11.0)
        assert list(cluster.served) == [2]
        assert cluster.nodes[cluster.served[2]].alive


def test_a_silent_host_is_replaced_once_at_most() -> None:
    """Under losses of power beside deaths no host lives beside another; under all faults one may, for a while."""
    reached: Counter[str] = Counter()
    for seed in range(SEEDS):
        reached += play.play(seed, outvotes=True, kinds=play.DEADLY).reached
    assert reached["elected"] > SEEDS / 2
    assert reached["found the host silent"]
    assert not reached["elected beside a host that lives"]
    for seed in range(SEEDS):
        reached += play.play(seed, outvotes=True, kinds=(*play.KINDS, *play.WITHOUT_POWER)).reached
    for what in ("heard the host again", "was replaced", "elected beside a host that lives"):
        assert reached[what], what


@pytest.mark.parametrize(("nodes", "without_power"), [(3, 1), (4, 1), (5, 1), (5, 2), (9, 1), (9, 3)])
def test_a_host_without_power_is_replaced_a_lease_behind_its_last_heartbeat(nodes: int, without_power: int) -> None:
    """By more than half of the voters, of whom others may have lost their power with it."""
    for seed in range(5):
        cluster = play.job(seed, nodes, outvotes=True)
        cluster.run(10.0)
        for number in range(without_power):
            cluster.lose_power(f"n{number}")
        cluster.run(10.0 + LEASE_S + 1.0)
        assert list(cluster.served)[:1] == [2]
        assert cluster.nodes[cluster.served[2]].alive


@pytest.mark.parametrize(("nodes", "without_power"), [(2, 1), (4, 2), (5, 3), (9, 4)])
def test_half_of_the_voters_replace_no_silent_host(nodes: int, without_power: int) -> None:
    """The other half could do the same."""
    cluster = play.job(0, nodes, outvotes=True)
    cluster.run(10.0)
    for number in range(without_power):
        cluster.lose_power(f"n{number}")
    cluster.run(40.0)
    assert not cluster.served


def test_voters_that_died_behind_their_vote_still_count() -> None:
    """n1 is elected by n2, n3 and n4, which die; n5 and n6 do not reach it, and elect no other."""
    cluster = play.job(2, 7)
    cluster.run(6.0)
    cluster.cut = {pair for far in ("n5", "n6") for pair in ((far, "n1"), ("n1", far))}
    cluster.die("n0")
    while 2 not in cluster.served:
        cluster.run(cluster.now + 0.01)
    for voter in ("n2", "n3", "n4"):
        cluster.die(voter)
    cluster.run(cluster.now + 20.0)
    assert cluster.served == {2: "n1"}


def test_a_node_that_was_cut_off_before_its_host_died_elects_nobody() -> None:
    """The newcomer that took its place does."""
    assert replaced().served == {2: "n2"}


def test_a_node_that_is_back_elects_nobody_before_it_has_read_what_it_missed() -> None:
    assert replaced(reads=False).served == {2: "n2"}


@pytest.mark.parametrize("bug", BY_SCHEDULE, ids=lambda bug: bug.name)
def test_bugs_that_let_a_lost_node_elect_break_a_promise(bug: Mutant) -> None:
    with bug.planted(), pytest.raises(Broken, match="were elected for epoch 2"):
        replaced(reads=False)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bugs_break_a_promise(bug: Mutant) -> None:
    """An invariant that no bug can break checks nothing."""
    seed = FOUND[bug.name]
    with bug.planted(), pytest.raises(Broken):
        play.play(seed)
    play.play(seed)


@pytest.mark.parametrize("deaths", [0, 1])
def test_two_voters_in_every_order_of_messages_elect_one_host_at_most(deaths: int) -> None:
    """Or none: and both can be the one."""
    jobs = orders.reachable(orders.orphans("h", "ab"), Bounds(1, deaths), MOST)
    assert {node for job in jobs for _, node in job.elected} == {"a", "b"}


@pytest.mark.parametrize("bug", BY_ORDERS, ids=lambda bug: bug.name)
def test_some_order_of_messages_shows_a_planted_bug(bug: Mutant) -> None:
    with bug.planted(), pytest.raises(Broken):
        list(orders.reachable(orders.orphans("h", "ab"), Bounds(1, 0), MOST))
