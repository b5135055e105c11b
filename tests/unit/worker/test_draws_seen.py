"""Draws are seen without drawing, and checksums are the same whoever computes them."""

from __future__ import annotations

import ctypes
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
from elastic_agent.worker.keys import mix

np: Any = importlib.import_module("numpy")
TORCH = torch.Generator()
PYTHON = random.Random()

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


@pytest.mark.parametrize("kind", ["torch", "keyed random", "numpy"])
def test_another_seed_shows(kind: str) -> None:
    keyed = (marks.mark_of_python(PYTHON), lambda key: marks.key_python(PYTHON, key), None)
    mark, seed, _ = keyed if kind == "keyed random" else KINDS[kind]
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


@pytest.mark.parametrize("found", ["in memory", "not in memory"])
def test_a_replaced_numpy_generator_shows(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = np.random.get_bit_generator()
    if found == "not in memory":
        monkeypatch.setattr(ctypes, "string_at", lambda address, length: b"")
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


def test_numpys_generator_is_keyed_where_the_script_has_put_another_in_its_place() -> None:
    kept = np.random.get_bit_generator()
    try:
        for kind in (np.random.MT19937, np.random.PCG64):
            np.random.set_bit_generator(kind(3))
            drawn = []
            for key in (7, 8, 7):
                key_everything(key)
                drawn.append(np.random.rand())
            assert drawn[0] == drawn[2] != drawn[1]
            draws = Draws(always=False, held=(), on_sample=None)
            draws.park()
            np.random.rand()
            assert draws.found_more()
    finally:
        np.random.set_bit_generator(kept)


@pytest.mark.parametrize("where", ["_where_torch_has_it", "_where_python_has_it"])
def test_generators_whose_words_are_not_found_are_keyed_one_by_one(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, where, lambda: None)
    torchs, pythons, numpys = (type(library)() for library in LIBRARIES[:3])
    assert marks.key_together(torchs, PYTHON, pythons, np.random, numpys) is None


def test_numpy_may_be_imported_after_the_first_key() -> None:
    torchs, pythons, numpys = (type(library)() for library in LIBRARIES[:3])
    together = marks.key_together(torchs, random.random.__self__, pythons, None, numpys)  # type: ignore[attr-defined]
    assert together is not None
    for _ in range(2):
        together.key(7)
        assert np.random.get_state()[1].tolist() == expected_words(7)


def test_a_seed_of_the_scripts_own_shows_behind_a_key() -> None:
    mark = marks.mark_of_python(PYTHON)
    marks.key_python(PYTHON, 7)
    before = mark()
    PYTHON.seed(7)
    assert mark() != before


KEYS = [0, 7, 1 << 40 | 12345, (1 << 64) - 1]


def expected_words(key: int) -> list[int]:
    """What a seed of 32 bits makes; numpy is asked, whose seed is specified."""
    return np.random.RandomState(key & 0xFFFFFFFF).get_state()[1].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("key", KEYS)
def test_words_of_a_seed_are_those_of_numpy_and_torch(key: int) -> None:
    words = marks.words_of(key & 0xFFFFFFFF)
    assert words == expected_words(key)
    state = TORCH.manual_seed(key).get_state()
    assert state[24 : 24 + 8 * 624].view(torch.int64).tolist() == words


@pytest.mark.parametrize("drawn", ["nothing", "a number of a pair"])
@pytest.mark.parametrize("found", ["in memory", "not in memory"])
@pytest.mark.parametrize("key", KEYS)
def test_pythons_generator_gets_torchs_words_turned_by_half(key: int, found: str, drawn: str) -> None:
    generator = random.Random(3)
    if drawn != "nothing":
        generator.gauss(0, 1)
    if found == "in memory":
        libraries = [type(library)() for library in LIBRARIES[:3]]
        together = marks.key_together(libraries[0], generator, libraries[1], None, libraries[2])
        assert together is not None
        together.key(key)
    else:
        marks.key_python(generator, key)
    words = expected_words(key)
    assert generator.getstate() == (3, (*words[312:], *words[:312], 624), None)


def test_what_a_loop_draws_is_parked_without_words_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop may draw from `random` at every step, and from nothing else."""
    monkeypatch.setattr(marks, "words_of", None)
    draws = Draws(always=False, held=(), on_sample=None)
    key_everything(7)
    random.random()
    draws.park()
    assert not draws.found_more()
    random.random()
    assert draws.found_more()


def test_the_training_process_draws_the_same_where_words_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(key_all: Callable[[int], None]) -> list[Any]:
        found = []
        for key in KEYS:
            key_all(key)
            found.append((random.random(), float(torch.rand(())), float(np.random.rand()), random.getrandbits(9000)))
        return found

    def one_by_one(key: int) -> None:
        for library in libraries:
            library.key(key)

    in_memory = drawn(key_everything)
    monkeypatch.setattr(marks, "_where_torch_has_it", lambda: None)
    monkeypatch.setattr(marks, "_where_python_has_it", lambda: None)
    libraries = [type(library)() for library in LIBRARIES]
    assert drawn(one_by_one) == in_memory


def test_libraries_do_not_draw_the_same_numbers() -> None:
    """Of one key: Python's are far from numpy's, whose 53 bits are made of words in the same way."""
    rows = []
    for number in range(4000):
        key_everything(mix(11, number))
        rows.append([*(random.random() for _ in range(4)), *np.random.rand(4), *torch.rand(4).tolist()])
    key_everything(7)
    words = [{random.getrandbits(32) for _ in range(1300)}, set(np.random.randint(1 << 32, size=1300, dtype="u4"))]
    assert len(words[0] & words[1]) <= 1  # nor later in one than in the other, behind two turns of all words
    related = torch.tensor(rows, dtype=torch.float64).T.corrcoef()
    # Python beside the others: 4 x 8 numbers that are normal with a deviation of 1 / sqrt(4000).
    assert float(related[:4, 4:].abs().max()) < 4.5 / 4000**0.5


def test_zlib_computes_checksums_where_nothing_faster_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
    assert fastest() is zlib.crc32


def test_zlib_ng_computes_the_same_checksums() -> None:
    faster = pytest.importorskip("zlib_ng.zlib_ng", reason="zlib-ng is not installed").crc32
    assert importlib.import_module("elastic_agent.worker.checkpoints.crc").crc32 is faster
    data = random.Random(1).randbytes(100_000)
    for first, last in ((0, 0), (0, 1), (3, 70_000), (1, 100_000)):
        assert faster(data[first:last], 17) == zlib.crc32(data[first:last], 17)
