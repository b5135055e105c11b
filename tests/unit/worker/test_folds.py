"""The sum over the shards: which order it has, and that its bits do not depend on the number of ranks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from elastic_agent.worker.shards.exchange import Exchange
from elastic_agent.worker.shards.fold import ABSENT, Fold
from elastic_agent.worker.shards.tree import Node, Tree


class InMemory(Exchange):
    """Carries messages between threads."""

    def __init__(self, rank: int, ranks: int, post: dict[tuple[int, int, int], queue.Queue[Any]]) -> None:
        super().__init__(rank, ranks, lambda: None)
        self.sent = 0
        self._post = post

    def send(self, memory: torch.Tensor, to: int, tag: int) -> Any:
        self.sent += memory.numel()
        self._post[self.rank, to, tag].put(memory.clone())
        return Done(lambda: None)

    def receive(self, memory: torch.Tensor, source: int, tag: int) -> Any:
        return Done(lambda: memory.copy_(self._post[source, self.rank, tag].get(timeout=30)))


class Done:
    def __init__(self, wait: Callable[[], Any]) -> None:
        self.wait = wait


class Post(dict[tuple[int, int, int], "queue.Queue[Any]"]):
    """A queue for each pair of ranks and tag."""

    lock = threading.Lock()

    def __missing__(self, key: tuple[int, int, int]) -> queue.Queue[Any]:
        with self.lock:
            return self.setdefault(key, queue.Queue())


def summed(vectors: list[torch.Tensor | None], ranks: int, length: int, turns: int = 1) -> tuple[torch.Tensor, int]:
    """The mean that all ranks get, divided by 7, and the numbers that rank 0 sent."""
    tree, post = Tree(len(vectors), ranks), Post()
    results: dict[int, torch.Tensor] = {}
    exchanges = [InMemory(rank, ranks, post) for rank in range(ranks)]

    def work(rank: int) -> None:
        fold = Fold(length, torch.float32, torch.device("cpu"), tree, exchanges[rank])
        for _ in range(turns):
            fold.begin()
            for shard in tree.shards[rank].shards():
                fold.add(shard, filler(vectors[shard]))
            fold.start()
            results[rank] = fold.finish(7)[:length].clone()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == list(range(ranks))
    for found in results.values():
        assert same_bits(found, results[0])
    return results[0], exchanges[0].sent


def filler(vector: torch.Tensor | None) -> Callable[[torch.Tensor, bool], None] | None:
    if vector is None:
        return None

    def fill(flat: torch.Tensor, add: bool) -> None:
        (flat[: len(vector)].add_ if add else flat[: len(vector)].copy_)(vector)

    return fill


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def vectors_of(count: int, length: int) -> list[torch.Tensor | None]:
    """Of very different sizes, so that each order of additions has other bits."""
    made = torch.Generator().manual_seed(count)
    return [torch.randn(length, generator=made) * 10.0 ** (shard % 5) for shard in range(count)]


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 8, 12])
def test_the_sum_has_the_same_bits_over_any_number_of_ranks(shards: int) -> None:
    vectors = vectors_of(shards, 100)
    alone, _ = summed(vectors, 1, 100)
    for ranks in range(2, shards + 1):
        assert same_bits(summed(vectors, ranks, 100)[0], alone), f"{ranks} ranks"


def test_the_sum_is_that_of_all_shards() -> None:
    vectors = [torch.full((5,), 2.0**shard) for shard in range(8)]
    assert summed([*vectors], 3, 5)[0].tolist() == pytest.approx([255 / 7] * 5)


def test_another_order_would_have_other_bits() -> None:
    """So that the tests here can fail."""
    vectors = vectors_of(8, 100)
    assert not same_bits(summed(vectors, 1, 100)[0], summed([*vectors[1:], vectors[0]], 1, 100)[0])


@pytest.mark.parametrize("missing", [[0], [3], [0, 1, 2, 3], [7], [1, 2, 5, 6, 7]])
def test_a_shard_without_samples_changes_no_bit(missing: list[int]) -> None:
    """Not even of a zero with a sign: minus zero stays."""
    vectors = vectors_of(8, 50)
    for vector in vectors:
        assert vector is not None
        vector[:25] = -0.0
    present = [None if shard in missing else vector for shard, vector in enumerate(vectors)]
    results = [summed(present, ranks, 50)[0] for ranks in (1, 2, 3, 8)]
    assert all(same_bits(found, results[0]) for found in results)
    assert same_bits(results[0][:25], torch.full((25,), -0.0))


def test_what_is_absent_is_the_identity_of_the_addition() -> None:
    numbers = torch.tensor([-0.0, 0.0, 1.5, -3.0, float("inf"), 1e-45])
    assert same_bits(numbers + ABSENT, numbers)


def test_a_later_step_reuses_the_memory_and_is_right() -> None:
    vectors = vectors_of(8, 40)
    assert same_bits(summed(vectors, 3, 40, turns=3)[0], summed(vectors, 1, 40)[0])


def test_long_vectors_go_in_pieces() -> None:
    """Two million numbers over two ranks: 4 MiB a slice, so several messages for each."""
    length = 2_000_000
    vectors: list[torch.Tensor | None] = [torch.full((length,), 1.0 + shard) for shard in range(4)]
    found, sent = summed(vectors, 2, length)
    assert found.tolist()[:: length // 10] == pytest.approx([10 / 7] * 10)
    # As a ring all_reduce: half of the vector to be summed, and the other half when it is.
    assert length <= sent <= 1.001 * length


def test_powers_of_two_send_one_partial_sum_each() -> None:
    for ranks in (1, 2, 4, 8):
        assert all(len(parts) == 1 for parts in Tree(8, ranks).parts)


@pytest.mark.parametrize("shards", range(1, 20))
def test_ranks_have_each_shard_once_and_their_parts_are_of_the_one_tree(shards: int) -> None:
    for ranks in range(1, shards + 1):
        tree = Tree(shards, ranks)
        assert [shard for mine in tree.shards for shard in mine.shards()] == list(range(shards))
        assert [shard for parts in tree.parts for part in parts for shard in part.shards()] == list(range(shards))
        assert all(part in nodes_of(tree.root) for parts in tree.parts for part in parts)
        assert all(shard in tree.shards[tree.owner(shard)].shards() for shard in range(shards))


def nodes_of(node: Node) -> set[Node]:
    if node.high - node.low == 1:
        return {node}
    left, right = node.halves()
    return {node} | nodes_of(left) | nodes_of(right)
