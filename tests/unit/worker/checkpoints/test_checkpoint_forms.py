"""Forms of a checkpoint: torch's, safetensors, a file from elsewhere; and how often one is made."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_agent.worker import Every, Run, read_foreign
from elastic_agent.worker.checkpoints import files
from elastic_agent.worker.checkpoints.folder import Folder
from elastic_agent.worker.checkpoints.foreign import check_foreign
from elastic_agent.worker.errors import CheckpointDamaged, Misused, WrongState
from elastic_agent.worker.frameworks.hugging_face import write_manifest
from elastic_agent.worker.schedule import Advice
from elastic_agent.worker.verify import main

NEVER = Every(seconds=None)


class Tied(torch.nn.Module):
    """Two names for one tensor, a scalar, an empty tensor and types that safetensors has and has not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = self.first
        for name, value in {
            "scalar": torch.tensor(2.5),
            "empty": torch.empty(0, 4),
            "halves": torch.randn(5, dtype=torch.bfloat16),
            "turns": torch.randn(3, dtype=torch.complex64),
            "flags": torch.tensor([True, False]),
        }.items():
            self.register_buffer(name, value)


def saved(path: Path, form: str) -> Tied:
    net = Tied()
    run = Run(path, every=NEVER, format=form, net=net)
    run.vars.best = 0.5
    run._commits += 1
    run.close()
    return net


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_what_was_saved_is_loaded_in_either_form(tmp_path: Path, form: str, device: str) -> None:
    """Whatever torch's default device is, such as a GPU's, for which `meta` stands."""
    net, other = saved(tmp_path, form), Tied()
    with torch.device(device):
        run = Run(tmp_path, every=NEVER, net=other)
    assert run.vars.best == 0.5
    there = other.state_dict()
    for name, tensor in net.state_dict().items():
        assert torch.equal(there[name], tensor), name
        assert there[name].dtype == tensor.dtype


def test_a_state_as_torch_saved_it_is_read_with_weights_only(tmp_path: Path) -> None:
    net = saved(tmp_path, "torch")
    state = torch.load(tmp_path / "step-000000" / "state.pt", weights_only=True)
    assert torch.equal(state["net"]["first.weight"], net.first.weight)


def test_the_safetensors_package_reads_the_tensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    net = saved(tmp_path, "safetensors")
    read = safetensors.load_file(tmp_path / "step-000000" / "state.safetensors")
    expected = {f"net.{name}": tensor for name, tensor in net.state_dict().items()}
    assert {"net.first.weight", "net.first.bias", "net.scalar", "net.halves", "net.flags"} == set(read)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in read.items())


def test_another_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misused, match=r"Run\(format='pickle'\): there are 'torch' and 'safetensors'"):
        Run(tmp_path, format="pickle")


def foreign(path: Path) -> Path:
    torch.save({"w": torch.arange(5000.0), "lr": 0.1}, path)
    return path


def test_a_file_from_elsewhere_is_loaded_when_its_checksums_are_right(tmp_path: Path) -> None:
    state = read_foreign(foreign(tmp_path / "theirs.pt"))
    assert torch.equal(state["w"], torch.arange(5000.0))
    assert state["lr"] == 0.1


def test_flipped_bits_in_a_file_from_elsewhere_are_found(tmp_path: Path) -> None:
    """torch.load gives wrong numbers for them, without an error."""
    path, rng = foreign(tmp_path / "theirs.pt"), random.Random(3)
    whole = path.read_bytes()
    first = whole.index(torch.arange(5000.0).numpy().tobytes()[:64])
    for _ in range(30):
        data = bytearray(whole)
        data[first + rng.randrange(20000)] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        assert not torch.equal(torch.load(path)["w"], torch.arange(5000.0))
        with pytest.raises(CheckpointDamaged):
            read_foreign(path)


@pytest.mark.parametrize("cut", [0, 3, 1000, -1])
def test_a_file_from_elsewhere_that_was_cut_is_found(tmp_path: Path, cut: int) -> None:
    path = foreign(tmp_path / "theirs.pt")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointDamaged):
        check_foreign(path)


def test_a_file_without_checksums_is_said_to_have_none(tmp_path: Path) -> None:
    torch.save({"w": 1}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointDamaged, match="of a form without checksums"):
        check_foreign(tmp_path / "old.pt")


def test_the_command_verifies_a_file_from_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = foreign(tmp_path / "theirs.pt")
    assert main(["verify", str(path)]) == 0
    assert "by the checksums of its archive" in capsys.readouterr().out
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert main(["verify", str(path)]) == 1
    assert "DAMAGED" in capsys.readouterr().out


def test_the_command_verifies_a_checkpoint_by_its_own_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, every=Every(steps=1, seconds=None), net=torch.nn.Linear(1, 1))
    for _ in range(2):
        run.step()
    run.close()
    older = tmp_path / "step-000001"
    assert main(["verify", str(older)]) == 0
    assert capsys.readouterr().out.startswith("step-000001: whole, ")
    monkeypatch.chdir(older)
    assert main(["verify", "."]) == 0
    assert capsys.readouterr().out.startswith("step-000001: whole, ")
    (older / "ledger.json").write_bytes(b"[]")
    (tmp_path / "step-000002" / "ledger.json").unlink()
    assert main(["verify", str(older)]) == 1
    assert "step-000001: DAMAGED: ledger.json" in (said := capsys.readouterr().out)
    assert "step-000002" not in said


def of_a_trainer(path: Path) -> Path:
    path.mkdir(parents=True)
    foreign(path / "optimizer.pt")
    write_manifest(path)
    return path


def test_the_command_verifies_checkpoints_of_hugging_faces_trainer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest by its number first; one that a kill left without its manifest is no damage."""
    older, newest = of_a_trainer(tmp_path / "checkpoint-9"), of_a_trainer(tmp_path / "checkpoint-10")
    (tmp_path / "checkpoint-11").mkdir()
    for path in (tmp_path, newest):
        assert main(["verify", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "checkpoint-11: not finished, or not written by this library, and not used"
    assert [line.partition(",")[0] for line in lines[1:]] == [f"checkpoint-{step}: whole" for step in (10, 9, 10)]
    (older / "optimizer.pt").write_bytes(b"")
    assert main(["verify", str(tmp_path)]) == 1
    assert "checkpoint-9: DAMAGED" in capsys.readouterr().out


@pytest.mark.parametrize("call", ["fit-2", "train-2"])
def test_the_command_verifies_what_a_frameworks_further_calls_have_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], call: str
) -> None:
    saved(tmp_path, "torch")
    (tmp_path / "fit-3").mkdir()
    file = of_a_trainer(tmp_path / call / "checkpoint-4") / "optimizer.pt"
    assert main(["verify", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("step-000000: whole")
    assert lines[-1].startswith(f"{call}/checkpoint-4: whole")
    file.unlink()
    assert main(["verify", str(tmp_path)]) == 1


def test_the_command_says_in_a_line_that_a_directory_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.scandir", unreadable)
    assert main(["verify", str(tmp_path)]) == 74
    assert capsys.readouterr().err == f"{tmp_path} cannot be read: Permission denied; nothing was verified\n"


def test_a_checkpoint_of_a_later_format_is_refused_not_set_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from elastic_agent.worker.checkpoints import manifest

    saved(tmp_path, "torch")
    path = tmp_path / "step-000000" / manifest.NAME
    kept = {**json.loads(path.read_bytes()), "format": 3}
    del kept["crc32"]
    path.write_bytes(manifest._bytes_of(kept))
    with pytest.raises(WrongState, match="has format 3, and this version of elastic-agent reads 1 to 2"):
        Folder(tmp_path, lambda text: None).newest()
    assert (tmp_path / "step-000000").exists()
    assert main(["verify", str(tmp_path)]) == 1
    assert "step-000000: of a later version, not looked at: " in capsys.readouterr().out


def test_the_advised_interval_is_told_with_its_arithmetic() -> None:
    said: list[str] = []
    advice = Advice(said.append)
    assert advice.interval_s(0.0, 3600) > 0
    assert said == []
    assert advice.interval_s(0.02, 3600) == pytest.approx(12.0)
    sentence = (
        "a checkpoint every 12 s: sqrt(2 x 0.02 s blocked by a save x 3.6e+03 s between failures); saves then cost "
        "0.0017 of the time, and a failure 6 s on average"
    )
    assert said == [sentence]
    advice.interval_s(0.021, 3600)
    assert len(said) == 1
    advice.interval_s(0.08, 3600)
    assert len(said) == 2


def test_a_disk_that_reads_no_checkpoint_does_not_begin_the_run_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elastic_agent.worker.checkpoints import folder

    def unreadable(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    saved(tmp_path, "torch")
    with monkeypatch.context() as failing:
        failing.setattr(folder, "check_file", unreadable)
        for _ in range(2):  # a launcher starts it again
            with pytest.raises(OSError, match=r"no checkpoint in .* can be read, .*step-000000: .*Input/output error"):
                Run(tmp_path, every=NEVER, net=Tied())
    assert Run(tmp_path, every=NEVER, net=Tied()).vars.best == 0.5


def test_a_run_that_begins_anew_as_no_checkpoint_verifies_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, "torch")
    (tmp_path / "step-000000" / "state.pt").write_bytes(b"")
    assert not Run(tmp_path, every=NEVER, net=Tied()).vars.state_dict()
    assert f"no checkpoint in {tmp_path} verifies, so the run begins anew, at step 0; WHY.txt" in caplog.text


def test_a_checkpoint_that_cannot_be_read_is_set_aside_and_the_one_before_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elastic_agent.worker.checkpoints import folder

    run = Run(tmp_path, every=NEVER)
    for _ in range(2):
        run.steps += 1
        run._commits += 1
        run._save("")
        run._persistence.wait()
    real = files.check_file

    def unreadable(path: Path, content: Any) -> None:
        if path.parent.name == "step-000002":
            raise OSError(5, "Input/output error")
        real(path, content)

    monkeypatch.setattr(folder, "check_file", unreadable)
    assert Run(tmp_path, every=NEVER).steps == 1
    why = (tmp_path / "step-000002.bad" / "WHY.txt").read_text()
    assert why == "it cannot be read: [Errno 5] Input/output error\n"


@pytest.mark.parametrize("kind", [files.Reader, files.CheckedWriter])
def test_a_file_that_cannot_be_opened_is_let_go_without_a_word(tmp_path: Path, kind: Any) -> None:
    """`python -X dev` shows what is raised as the interpreter lets go of one."""
    file = kind.__new__(kind)
    with pytest.raises(FileNotFoundError):
        file.__init__(tmp_path / "missing" / "file")
    file.close()
