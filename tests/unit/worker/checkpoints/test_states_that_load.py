"""What a state holds comes back as it was, or is refused as it is saved: nothing is written that no start can load."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from elastic_agent.worker import Every, Retention, Run
from elastic_agent.worker.checkpoints import copies, files
from elastic_agent.worker.checkpoints.folder import Folder, next_name
from elastic_agent.worker.checkpoints.manifest import Manifest
from elastic_agent.worker.checkpoints.pieces import identity
from elastic_agent.worker.errors import Misused, NotResumable, WrongState
from elastic_agent.worker.loop.log import RunLog
from elastic_agent.worker.values import Vars, kept_of


class Holder:
    """Anything with `state_dict` and `load_state_dict`."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def run_in(path: Path, state: Any = None, **more: Any) -> tuple[Run, Holder]:
    held = Holder(state)
    return Run(path, every=Every(seconds=None), held=held, **more), held


def saved(path: Path, state: Any, **more: Any) -> Any:
    """The state as the next start loads it."""
    run, _ = run_in(path, state, **more)
    save(run)
    return run_in(path, **more)[1].state


def save(run: Run) -> None:
    run.step()
    run._save("")
    run._persistence.wait()


@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_a_tensor_keeps_the_order_in_which_its_numbers_lie(tmp_path: Path, form: str) -> None:
    """A fused optimizer pairs the numbers of its state with those of the parameter as they lie in memory."""
    image = torch.randn(8, 4, 16, 16).to(memory_format=torch.channels_last)
    found = saved(tmp_path, {"image": image, "turned": torch.randn(40, 50).t()}, format=form)
    assert found["image"].stride() == image.stride()
    assert found["turned"].stride() == (1, 50)
    assert torch.equal(found["image"], image)


def test_tensors_without_memory_of_their_own_stay_apart(tmp_path: Path) -> None:
    """x and its conjugate share the memory and not the numbers; of a class that holds other tensors, none has an
    address."""
    from torch.masked import MaskedTensor

    x, mask = torch.randn(4, dtype=torch.complex64), torch.tensor([True, False])
    assert identity(x) != identity(x.conj())
    found = saved(tmp_path, {"x": x, "conj": x.conj()})
    assert torch.equal(found["conj"], x.conj().resolve_conj())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is a prototype
        one, other = (MaskedTensor(torch.tensor([value, 2.0]), mask) for value in (1.0, 3.0))
        assert identity(one) != identity(other)


def test_a_module_finds_the_version_of_its_state(tmp_path: Path) -> None:
    """Else one that changes states of an older version would change its own at each start."""
    net = torch.nn.BatchNorm1d(3)
    found = saved(tmp_path, net.state_dict())
    assert vars(found) == vars(net.state_dict())


def test_a_counter_stays_one_and_a_set_of_numpys_numbers_is_loaded(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    found = saved(tmp_path, {"seen": {numpy.int64(3), 4}, "counts": Counter("aab"), (numpy.int64(1), 2): "key"})
    assert found == {"seen": {3, 4}, "counts": Counter("aab"), (1, 2): "key"}
    assert isinstance(found["counts"], Counter)


@pytest.mark.parametrize(
    "value",
    [b"", 1 << 3000, {b""}, frozenset([1]), torch.empty(2, device="meta")],
    ids=["b", "int", "set", "frozen", "meta"],
)
def test_what_no_start_could_load_is_refused_by_each_save(tmp_path: Path, value: Any) -> None:
    """Also where it comes into a state behind the first save: retention would remove the last good checkpoint."""
    run, held = run_in(tmp_path, {"value": b"plain"})
    save(run)
    held.state = {"value": value}
    with pytest.raises(NotResumable, match=r"held"):
        save(run)
    assert run_in(tmp_path)[1].state == {"value": b"plain"}


def test_a_nested_tensor_that_no_start_could_load_is_refused_with_what_to_keep(tmp_path: Path) -> None:
    parts = [torch.ones(2), torch.ones(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is a prototype
        run, held = run_in(tmp_path, {"value": torch.nested.nested_tensor(parts)})
        with pytest.raises(NotResumable, match=r"tensor held\.value is a nested tensor .*layout=torch\.jagged"):
            save(run)
        held.state = {"value": torch.nested.nested_tensor(parts, layout=torch.jagged)}
        save(run)
        found = run_in(tmp_path)[1].state["value"]
    assert [part.tolist() for part in found.unbind()] == [[1, 1], [1, 1, 1]]


@pytest.mark.parametrize("kind", [list, dict])
def test_what_holds_itself_is_refused_by_its_place(tmp_path: Path, kind: type) -> None:
    run, _ = run_in(tmp_path)
    run.vars.seen = kind()
    if kind is list:
        run.vars.seen.append(run.vars.seen)
    else:
        run.vars.seen[0] = run.vars.seen
    with pytest.raises(NotResumable, match=rf"run\.vars\.seen\.0 is the {kind.__name__} that it lies in.*keep a copy"):
        save(run)


def test_what_holds_itself_is_refused_before_ranks_compare_it() -> None:
    kept = Vars()
    kept.seen = []
    kept.seen.append(kept.seen)
    world: Any = SimpleNamespace(size=2)
    with pytest.raises(NotResumable, match=r"run\.vars\.seen\.0 is the list"):
        kept_of(kept, world, RunLog(0))


def test_what_holds_itself_is_refused_behind_a_loop_too(tmp_path: Path) -> None:
    """Where states are looked at without a save."""
    run, held = run_in(tmp_path, {"ring": []})
    held.state["ring"].append(held.state)
    assert run.between is not None
    with pytest.raises(NotResumable, match=r"held\.ring\.0 is the dict that it lies in"):
        run.between.passed()


def test_more_is_read_than_the_kernel_gives_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux reads 2 GiB at most in one call, and torch takes a short answer for the end of the file."""
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: whole(fd, [views[0][:1000]], at))
    (tmp_path / "file").write_bytes(bytes(5000))
    with files.Reader(tmp_path / "file") as reader:
        assert reader.readinto(bytearray(5000)) == 5000


def test_a_relative_directory_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may go elsewhere while the writer's thread writes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    run, _ = run_in(Path("kept"), {"a": 1})
    monkeypatch.chdir("work")
    save(run)
    assert (tmp_path / "kept" / "step-000001").is_dir()


@pytest.mark.parametrize("within", ["", "deeper"])
def test_a_file_in_the_place_of_the_directory_is_refused_by_name(tmp_path: Path, within: str) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(Misused, match=r"directory of checkpoints: \S+/taken is a file; remove it, or give another"):
        run_in(tmp_path / "taken" / within)
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize("within", ["", "deeper"])
def test_a_link_to_nothing_in_the_place_of_the_directory_is_refused_by_name(tmp_path: Path, within: str) -> None:
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(Misused, match=r"\S+/link is a link to gone, which is not there; make that directory"):
        run_in(tmp_path / "link" / within)


@pytest.mark.parametrize(
    ("directory", "said"),
    [
        ("", r"Run\(''\) names no directory: give one, or '.' for the working directory"),
        (
            "s3://bucket/run",
            r"Run\('s3://bucket/run'\) names a URL, .* give one, and Run\(..., copy_to='s3://bucket/run'",
        ),
        (Path("s3://bucket/run"), r"Run\('s3:/bucket/run'\) names a URL"),
    ],
)
def test_a_place_that_is_no_directory_is_refused_before_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str | Path, said: str
) -> None:
    """As of a variable that is not set, and of storage that only copies can go to."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misused, match=said):
        Run(directory)
    assert not list(tmp_path.iterdir())


def test_an_optimizer_whose_state_is_on_no_rank_is_refused_at_the_start(tmp_path: Path) -> None:
    """As torch.distributed.optim.ZeroRedundancyOptimizer, which needs a process group to be made."""
    kind = type("ZeroRedundancyOptimizer", (torch.optim.SGD,), {})
    with pytest.raises(
        Misused, match=r"Run\(optimizer=...\): the state of a Zero.* shard the model by fully_shard, or"
    ):
        Run(tmp_path, optimizer=kind(torch.nn.Linear(1, 1).parameters()))


def test_what_deepspeeds_zero_divides_over_the_ranks_is_refused_at_the_start(tmp_path: Path) -> None:
    """The weights of the model are copies of those that it trains: a start's first step put them back to the first."""
    net = torch.nn.Linear(1, 1)
    zero = type("ZeROOptimizer", (torch.optim.SGD,), {})
    with pytest.raises(Misused, match=r"Run\(optimizer=...\): DeepSpeed's ZeRO .* shard the model by fully_shard, or"):
        Run(tmp_path, optimizer=zero(net.parameters()))
    net.weight._hp_mapping = None  # type: ignore[attr-defined]
    with pytest.raises(Misused, match=r"Run\(model=...\): DeepSpeed's ZeRO keeps the weights that a Linear trains"):
        Run(tmp_path, model=net)


def test_a_retention_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misused, match=r"keep=3 is no Retention; give keep=Retention\(newest=3\)"):
        Run(tmp_path, keep=3)  # type: ignore[arg-type]


def test_a_label_may_be_whatever_has_a_text(tmp_path: Path) -> None:
    run, _ = run_in(tmp_path)
    for label in (Path("best"), None):
        run.step()
        run.save(label)  # type: ignore[arg-type]
        run.close()
    assert [Manifest.read(kept.path).label for kept in Folder(tmp_path, pytest.fail).kept()] == ["", "best"]


def test_retention_keeps_at_least_the_newest() -> None:
    for wrong in (0, -1):
        with pytest.raises(Misused, match="newest"):
            Retention(newest=wrong)
    with pytest.raises(Misused, match="steps"):
        Every(steps=0)


def test_a_further_checkpoint_of_a_step_is_the_newest_though_the_first_was_removed(tmp_path: Path) -> None:
    """It would get the name that is free again, pass for the oldest, and be removed as soon as it is written."""
    assert next_name(7, ["step-000007-2", "step-000007-3"], lambda name: name.endswith("-4")) == "step-000007-4"
    folder = Folder(tmp_path, pytest.fail)
    for number in range(1, 6):
        manifest = Manifest(7, "token", 0, {}, {"number": number}, "", {})
        aside = tmp_path / ".aside"
        aside.mkdir()
        (aside / "manifest.json").write_bytes(manifest.to_bytes())
        named = folder.place(aside, manifest)
        folder.retain(Retention(newest=2), "token")
        assert folder.kept()[0].path == named


def test_a_copy_that_fails_leaves_nothing_on_the_slower_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stays would fill it, so that no later copy fits either."""
    whole, fails = copies._copy, [True]

    def full(path: Path, to: Path) -> Any:
        if fails:
            fails.pop()
            to.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        return whole(path, to)

    monkeypatch.setattr(copies, "_copy", full)
    run, _ = run_in(tmp_path / "near", {"a": 1}, copy_to=tmp_path / "far")
    save(run)
    assert not list((tmp_path / "far").rglob("*"))
    save(run)
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["step-000002"]


def test_a_moved_checkpoint_behind_a_link_is_let_go(tmp_path: Path) -> None:
    run, _ = run_in(tmp_path / "kept", {"a": 1}, keep=Retention(newest=1))
    save(run)
    (tmp_path / "kept" / "step-000001").rename(tmp_path / "moved")
    (tmp_path / "kept" / "step-000001").symlink_to(tmp_path / "moved")
    save(run)
    left = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert left == ["round.json", "step-000002"]
    assert (tmp_path / "moved" / "state.pt").exists()


def test_a_state_that_does_not_fit_is_named_with_what_to_give(tmp_path: Path) -> None:
    """An optimizer that got another group of parameters in mid-training, which a start does not make."""

    def run(groups: int) -> Run:
        nets = [torch.nn.Linear(1, 1) for _ in range(groups)]
        optimizer = torch.optim.SGD([{"params": list(net.parameters())} for net in nets], lr=0.1)
        return Run(tmp_path / "checkpoints", optimizer=optimizer)

    first = run(2)
    first.step()
    first.close()
    with pytest.raises(WrongState, match=r"state 'optimizer' that does not fit into the SGD .*all groups"):
        run(1)


@pytest.mark.parametrize("directory", ["/sys/fs", "/sys/fs/checkpoints"])
def test_a_directory_that_this_user_may_not_write_to_is_refused_in_a_line(directory: str) -> None:
    """Nor does root in /sys. It was a bare error of the system, about a file that nobody knows."""
    with pytest.raises(
        Misused, match=rf"^{directory} cannot be the directory .* user \d+ may not write there .*; give"
    ):
        Run(directory)
