"""How long a call to etcd waits for one server before it asks the next."""

from __future__ import annotations

from elastic_agent.rendezvous.etcd.cluster import ATTEMPT_MOST_S, ATTEMPT_S, Patience


def test_servers_that_all_hang_get_longer_also_in_later_calls() -> None:
    """Each attempt that is given up is work for nothing to servers that are slow."""
    patience = Patience(servers=3)
    assert patience.attempt_s == ATTEMPT_S
    patience.all_hung()
    assert patience.attempt_s == 2 * ATTEMPT_S
    for _ in range(5):
        patience.all_hung()
    assert patience.attempt_s == ATTEMPT_MOST_S


def test_slow_answers_keep_it_long_and_quick_ones_shorten_it_again() -> None:
    patience = Patience(servers=3)
    patience.answered(0.6)
    assert 1.7 < patience.attempt_s <= ATTEMPT_MOST_S
    quick = 0
    while patience.attempt_s > ATTEMPT_S:
        patience.answered(0.001)
        quick += 1
    assert 5 <= quick <= 15


def test_one_server_gets_all_the_time_of_a_call() -> None:
    """There is no other to ask."""
    patience = Patience(servers=1)
    patience.all_hung()
    patience.answered(0.001)
    assert patience.attempt_s == float("inf")
