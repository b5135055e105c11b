"""Draws are seen without drawing, and checksums are the same whoever computes them."""

from __future__ import annotations

import importlib
import random
import sys
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from elastic_agent.worker.checkpoints.crc import fastest
from elastic_agent.worker.data import marks
from elastic_agent.worker.data.randomness import LIBRARIES, Draws, key_everything

np: Any = importlib.import_module("numpy")
TORCH = torch.Generator()
PYTHON = random.Random()
TORCH_GLOBAL = torch.default_generator

KINDS: dict[str, tuple[marks.Mark, Callable[[int], Any], Callable[[int], Any]]] = {
    "torch": (marks.mark_of_torch(TORCH), TORCH.manual_seed, lambda n: torch.rand(n, generator=TORCH)),
    "random": (marks.mark_of_python(PYTHON), PYTHON.seed, lambda n: [PYTHON.getrandbits(32) for _ in range(n)]),
    "numpy": (marks.mark_of_numpy(np.random), np.random.seed, lambda n: np.random.randint(0, 1 << 31, n)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("draws", [1, 2, 623, 624, 1248])
def test_any_number_of_draws_shows(kind: str, draws: int) -> None:
    """624 words are a whole turn of a Mersenne Twister: the place is the same, the words are not."""
    mark, seed, draw = KINDS[kind]
    seed(7)
    draw(1)
    before = mark()
    assert mark() == before
    draw(draws)
    assert mark() != before


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_shows(kind: str) -> None:
    mark, seed, _ = KINDS[kind]
    seed(7)
    before = mark()
    seed(8)
    assert mark() != before
    seed(7)
    assert mark() == before


def test_words_are_read_in_memory_in_this_torch_and_python() -> None:
    """Where they are not found, states are asked for: right, but slow."""
    assert marks._where_torch_has_it() is not None
    assert marks.mark_of_python(PYTHON) != PYTHON.getstate


def test_a_torch_whose_state_lies_elsewhere_is_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "_where_torch_has_it", lambda: None)
    mark = marks.mark_of_torch(TORCH)
    before = mark()
    assert mark() == before
    torch.rand(1, generator=TORCH)
    assert mark() != before


def test_a_python_whose_state_lies_elsewhere_is_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "_read", lambda generator, where: (0, 0, 0))
    assert marks.mark_of_python(PYTHON) == PYTHON.getstate


def test_a_replaced_numpy_generator_shows() -> None:
    kept = np.random.get_bit_generator()
    mark = marks.mark_of_numpy(np.random)
    before = mark()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        assert mark() != before
    finally:
        np.random.set_bit_generator(kept)


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_a_number_that_training_left_over_is_not_taken_for_no_draw(library: Any) -> None:
    """gauss() makes two numbers and keeps one, which the next call gives without a draw."""
    draw = {"torch": lambda: torch.randn(1), "random": lambda: random.gauss(0, 1), "numpy": np.random.randn}
    draws = Draws(always=False, held=(), on_sample=None)
    draw[library.name]()
    draws.park()
    draw[library.name]()
    assert draws.found_more()
    assert draws._in_use == (library,)


BEFORE: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "one of a pair": np.random.randn,
    "a number": np.random.random_sample,
    "a whole turn": lambda: np.random.randint(0, 1 << 31, 624),
}


@pytest.mark.parametrize("drawn", BEFORE)
def test_numpy_is_keyed_as_its_own_seed_keys_it(drawn: str) -> None:
    """By a copy of torch's words where nobody has drawn from it since the last key, else by `seed`: the same state, and
    no number left over."""
    for key in (7, 1 << 40 | 12345, (1 << 64) - 1):
        BEFORE[drawn]()
        key_everything(key)
        name, words, place, has_left_over, _ = np.random.get_state()
        expected = np.random.RandomState(key & 0xFFFFFFFF).get_state()
        assert (name, words.tolist(), place, has_left_over) == (expected[0], expected[1].tolist(), expected[2], 0)


def test_words_that_torch_has_gone_on_from_are_not_copied() -> None:
    """Only those that its seed has made are numpy's."""
    copy = marks.copier(np.random)
    assert copy is not None
    TORCH_GLOBAL.manual_seed(7)
    assert copy(7)
    assert not copy(8)
    torch.rand(1)
    assert not copy(7)


def test_a_torch_whose_state_lies_elsewhere_is_not_copied_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "_where_torch_has_it", lambda: None)
    assert marks.copier(np.random) is None


def test_zlib_computes_checksums_where_nothing_faster_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
    assert fastest() is zlib.crc32


def test_zlib_ng_computes_the_same_checksums() -> None:
    faster = pytest.importorskip("zlib_ng.zlib_ng", reason="zlib-ng is not installed").crc32
    assert importlib.import_module("elastic_agent.worker.checkpoints.crc").crc32 is faster
    data = random.Random(1).randbytes(100_000)
    for first, last in ((0, 0), (0, 1), (3, 70_000), (1, 100_000)):
        assert faster(data[first:last], 17) == zlib.crc32(data[first:last], 17)
