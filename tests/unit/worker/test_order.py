"""The order of samples: a permutation for every key and size, entered anywhere, and well shuffled."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.worker.data.order import CHUNK, SMALL, Permutation
from elastic_agent.worker.keys import key_of, mix, mixed

SIZES = [1, 2, 3, 5, 64, SMALL - 1, SMALL, SMALL + 1, 2 * CHUNK, 3 * CHUNK + 17]


@pytest.mark.parametrize("n", SIZES)
def test_every_index_comes_once(n: int) -> None:
    assert sorted(Permutation(key_of("once", n), n).indices(0, n)) == list(range(n))


@given(st.integers(1, 30_000), st.integers(0, 2**64 - 1), st.data())
def test_any_part_is_what_the_whole_has_there(n: int, key: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, n))
    last = data.draw(st.integers(first, n))
    assert Permutation(key, n).indices(first, last) == Permutation(key, n).indices(0, n)[first:last]


def test_the_order_is_the_same_for_ever() -> None:
    """Checkpoints name the version of the order; these values are of version 2, and the same in 3."""
    assert Permutation(7, 10).indices(0, 10) == [5, 0, 6, 9, 7, 8, 3, 2, 1, 4]
    assert Permutation(7, 10**9).indices(5 * 10**8, 5 * 10**8 + 4) == [931914821, 814879278, 40280577, 2093248]


@given(st.integers(SMALL, 2**40), st.integers(0, 2**64 - 1), st.data())
def test_the_order_is_the_same_with_and_without_numpy(n: int, key: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, n - 1))
    last = min(n, first + 300)
    assert "numpy" in sys.modules
    with_it = Permutation(key, n).indices(first, last)
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "numpy")
        assert Permutation(key, n).indices(first, last) == with_it


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_keys_that_are_computed_together_are_those_computed_alone(key: int, first: int) -> None:
    for count in (3, 70):
        assert mixed(key, first, count) == [mix(key, number) for number in range(first, first + count)]


def test_epochs_and_seeds_that_are_neighbours_share_nothing() -> None:
    """seed + epoch as a key would give seed 1, epoch 0 the order of seed 0, epoch 1."""
    orders = {
        tuple(Permutation(key_of(seed, "train", epoch), 100).indices(0, 100)) for seed in (0, 1) for epoch in (0, 1)
    }
    assert len(orders) == 4


def test_all_orders_of_a_tiny_dataset_are_as_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    trials = 12_000
    for number in range(trials):
        order = tuple(Permutation(key_of("tiny", number), 4).indices(0, 4))
        counts[order] = counts.get(order, 0) + 1
    expected = trials / math.factorial(4)
    chi2 = sum((count - expected) ** 2 / expected for count in counts.values())
    assert len(counts) == 24
    # 23 degrees of freedom: a fair shuffle exceeds 49.7 once in a thousand.
    assert chi2 < 49.7


@pytest.mark.parametrize("n", [SMALL - 1, 100_003])
def test_the_shuffle_has_no_pattern(n: int) -> None:
    """Six ways to see one: each is normal with deviation 1 for a true shuffle."""
    z = {}
    order = torch.tensor(Permutation(key_of("pattern", n), n).indices(0, n), dtype=torch.float64)
    again = torch.tensor(Permutation(key_of("pattern", n, 1), n).indices(0, n), dtype=torch.float64)
    place = torch.arange(n, dtype=torch.float64)
    z["position and index"] = _z_of_correlation(place, order)
    z["neighbours"] = _z_of_correlation(order[:-1], order[1:])
    z["two epochs"] = _z_of_correlation(order, again)
    z["differences"] = _z_of_correlation((order[1:] - order[:-1]).abs()[:-1], (order[1:] - order[:-1]).abs()[1:])
    low = order.long() & 63
    z["low bits"] = _z_of_correlation(place, low.double())
    first_half = float((order[: n // 2] < n / 2).double().mean())
    z["classes"] = (first_half - 0.5) / math.sqrt(1 / (4 * n))
    # Differences of neighbours are themselves related: a true shuffle of this length stays within 0.3 of its mean.
    z["differences"] = 0.0 if abs(z["differences"]) < 0.3 * math.sqrt(n) else math.inf
    assert {name: value for name, value in z.items() if abs(value) > 4.5} == {}


def _z_of_correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([first, second]))[0, 1]) * math.sqrt(len(first))


def test_the_middle_of_a_billion_is_reached_without_the_part_before() -> None:
    permutation = Permutation(key_of("middle"), 10**9)
    found = permutation.indices(5 * 10**8, 5 * 10**8 + 256)
    assert len(set(found)) == 256
    assert len(permutation._chunk) == CHUNK  # all that is in memory
