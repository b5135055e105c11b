"""elastic_agent.torchrun's names and shapes, called as torchrun's callers call torch's: accelerate's launcher
(`get_args_parser`, `parse_args`, `run`), Lightning Fabric's (`main`), notebooks' (`elastic_launch`), and by hand."""

from __future__ import annotations

import inspect
import os
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from elastic_agent import LaunchConfig, torchrun
from support.network import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

NAMES = ["get_args_parser", "parse_args", "config_from_args", "run", "main", "elastic_launch", "launch_agent"]
SHOW = "import os, pathlib, sys\npathlib.Path(sys.argv[1], os.environ['RANK']).write_text(' '.join(sys.argv[2:]))\n"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No default of a flag, and what a launch leaves in the environment taken back."""
    for name in os.environ:
        if name.startswith("PET_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where each worker leaves a file with its rank as the name."""
    made = tmp_path / "shown"
    made.mkdir()
    return made


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A worker: `script.py FOLDER WORDS...`."""
    path = tmp_path / "script.py"
    path.write_text(SHOW)
    return str(path)


def shown(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def tripled(number: int) -> tuple[str, int]:
    """What a worker returns, from its rank and an argument."""
    return os.environ["RANK"], 3 * number


@pytest.mark.parametrize("name", NAMES)
def test_a_name_takes_what_torchs_takes(name: str) -> None:
    """By position and by keyword: parameters have torch's names and order, and what is more has a default."""
    from torch.distributed import run as torchs_run
    from torch.distributed.launcher import api

    theirs = inspect.signature(getattr(api if "launch" in name else torchs_run, name)).parameters
    ours = inspect.signature(getattr(torchrun, name)).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    assert all(each.default is not inspect.Parameter.empty for each in list(ours.values())[len(theirs) :])
    required = {parameter for parameter in theirs if ours[parameter].default is inspect.Parameter.empty}
    assert required <= {p for p in theirs if theirs[p].default is inspect.Parameter.empty}


def test_all_names_of_torchs_module_are_there() -> None:
    """What is not ours is torch's own, `record` among it."""
    from torch.distributed import run as torchs_run
    from torch.distributed.elastic.multiprocessing.errors import record

    public = [name for name in vars(torchs_run) if not name.startswith("_")]
    assert [name for name in public if not hasattr(torchrun, name)] == []
    assert torchrun.record is record
    with pytest.raises(AttributeError, match="nobodys"):
        torchrun.nobodys  # noqa: B018 - it is looked up


def test_the_parser_has_torchs_flags_and_ours(script: str) -> None:
    from torch.distributed import run as torchs_run

    def flags(parser: Any) -> set[str]:
        return {option for action in parser._actions for option in action.option_strings}

    parser = torchrun.get_args_parser()
    assert flags(torchs_run.get_args_parser()) <= flags(parser)
    assert {"--restart-window", "--preload"} <= flags(parser) - flags(torchs_run.get_args_parser())
    # accelerate parses with it what it knows, and sets the rest by hand
    args, rest = parser.parse_known_args(["--nproc_per_node", "2", script, "--unknown"])
    assert isinstance(args, Namespace)
    assert (args.nproc_per_node, args.training_script, args.training_script_args) == ("2", script, ["--unknown"])
    assert rest == []


def test_a_command_line_becomes_a_configuration(script: str) -> None:
    """`config_from_args(parse_args(...))`: ours in the place of torch's LaunchConfig, with the command of a worker."""
    flags = ["--nproc-per-node=2", "--nnodes=1:4", "--max-restarts=7", "--restart-window=60", "--rdzv-id=job"]
    config, entrypoint, arguments = torchrun.config_from_args(torchrun.parse_args([*flags, script, "word"]))
    assert isinstance(config, LaunchConfig)
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node, config.max_restarts) == (1, 4, 2, 7)
    assert (config.run_id, config.restart_window) == ("job", 60.0)
    assert (entrypoint, arguments) == (sys.executable, ["-u", script, "word"])


def test_a_wrong_command_line_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        torchrun.parse_args(["--no-such-flag"])
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_run_takes_arguments_that_were_changed_by_hand(script: str, folder: Path) -> None:
    """As accelerate's `multi_gpu_launcher`: the parser's defaults, and attributes set one by one."""
    args = torchrun.get_args_parser().parse_args([script])
    args.nproc_per_node, args.training_script_args = "2", [str(folder), "by", "hand"]
    torchrun.run(args)
    assert shown(folder) == {"0": "by hand", "1": "by hand"}


def test_main_takes_fabrics_command_line(script: str, folder: Path) -> None:
    """As Fabric's `_torchrun_launch`, spelled with underscores."""
    flags = ["--nproc_per_node=2", "--nnodes=1", "--node_rank=0", "--master_addr=127.0.0.1"]
    torchrun.main([*flags, f"--master_port={free_port()}", script, str(folder), "fabric"])
    assert shown(folder) == {"0": "fabric", "1": "fabric"}


def test_main_reads_this_process_command_line(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["torchrun", "--standalone", script, str(folder), "argv"])
    torchrun.main()
    assert shown(folder) == {"0": "argv"}


@pytest.mark.parametrize("whose", ["torchs", "ours"])
def test_elastic_launch_returns_by_rank_what_a_function_returns(whose: str) -> None:
    """As notebook_launcher, with torch's LaunchConfig; a keyword is the name of torch's parameter."""
    made = import_module("torch.distributed.launcher.api").LaunchConfig if whose == "torchs" else LaunchConfig
    config = made(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", rdzv_endpoint="localhost:0")
    assert torchrun.elastic_launch(config=config, entrypoint=tripled)(7) == {0: ("0", 21), 1: ("1", 21)}


def test_launch_agent_takes_a_function_or_a_program(script: str, folder: Path) -> None:
    config = LaunchConfig(nproc_per_node=2)
    assert torchrun.launch_agent(config, tripled, [2]) == {0: ("0", 6), 1: ("1", 6)}
    assert torchrun.launch_agent(config, sys.executable, [script, str(folder), "program"]) == {0: None, 1: None}
    assert shown(folder) == {"0": "program", "1": "program"}


def test_a_health_check_server_lives_as_long_as_the_job(script: str, folder: Path) -> None:
    """torch's third argument of `elastic_launch`: started before the workers, and stopped behind a failure too."""
    done: list[str] = []

    class Server:
        def start(self) -> None:
            done.append("start")

        def stop(self) -> None:
            done.append("stop")

    launcher = torchrun.elastic_launch(LaunchConfig(), sys.executable, Server())
    assert launcher(script, str(folder)) == {0: None}
    assert done == ["start", "stop"]
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    with pytest.raises(ChildFailedError):
        torchrun.elastic_launch(LaunchConfig(max_restarts=0), sys.executable, Server())("-c", "raise SystemExit(3)")
    assert done == ["start", "stop"] * 2


def test_record_writes_what_main_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    """`main` is recorded, as torch's is: TORCHELASTIC_ERROR_FILE of an outer launcher holds its error."""
    error_file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(error_file))
    with pytest.raises(ValueError, match="nobodys"):
        torchrun.main(["--nproc-per-node=nobodys", script])
    assert "nobodys" in error_file.read_text()


def test_our_flags_beside_torchs_may_be_repeated_and_be_switches(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on our own command line, and by their variables where a launch is within another program."""
    told = ["--notify", "exec:a", "--page", "--notify", "exec:b", script]
    config, _, _ = torchrun.config_from_args(torchrun.parse_args(told))
    assert config.page
    assert config.notify == ("exec:a", "exec:b")
    monkeypatch.setenv("PET_PAGE", "1")
    config, _, _ = torchrun.config_from_args(torchrun.parse_args([script]))
    assert config.page
