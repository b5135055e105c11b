"""What PyTorch's own launcher tests check (`test/distributed/launcher/test_run.py`), written anew and run under both:
`torch.distributed.run`, which shows that a test asks for the right thing, and `elastic_agent.torchrun`.

Two of PyTorch's cases have no counterpart here, because they look into torch's internals:

* `test_launch_elastic_agent_raise_exception` replaces `LocalElasticAgent.run`; no job of ours has such an object. What
  it is about, that an exception of the agent reaches main's caller, is `test_an_error_of_the_agent_is_raised`.
* `test_launch_shutdown` replaces `LocalElasticAgent` and torch's rendezvous, and counts the latter's `shutdown`.

`test_virtual_local_rank` there needs two GPUs; `test_torch_fields.py` has what it checks. PyTorch's file itself (commit
0943060f, copied without that test) was run with torch 2.13 on 2026-11-23: its 25 other tests pass under torch's
launcher, and 23 with `import elastic_agent.torchrun as launch` in place of its import: all but the two above.
"""

# ruff: noqa: PT011 - which text torch's ValueErrors have is its own affair

from __future__ import annotations

import io
import multiprocessing
import os
import uuid
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from elastic_agent import UsageError
from support.network import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WORKERS = 2
WANTED = [
    "LOCAL_RANK",
    "RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "OMP_NUM_THREADS",
    "OUR_OWN",
    "TORCHELASTIC_ERROR_FILE",
]


@pytest.fixture(params=["torch.distributed.run", "elastic_agent.torchrun"], ids=["torchrun", "elastic-agent"])
def launch(request: pytest.FixtureRequest) -> Any:
    """The launcher, by its module."""
    return import_module(request.param)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A variable that workers must inherit, no default of a flag, and what launchers leave behind taken back."""
    for name in os.environ:
        if name.startswith("PET_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OUR_OWN", "inherited")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")
    with mock.patch("signal.signal"):  # torch never gives back the handlers that it sets
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where each worker leaves a file with its rank as the name."""
    made = tmp_path / "touched"
    made.mkdir()
    return made


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A worker: `script.py FOLDER`, or `script.py fail`."""
    path = tmp_path / "script.py"
    path.write_text(
        f"import os, pathlib, sys\nfor name in {WANTED!r}: print(name, os.environ[name])\n"
        "if sys.argv[1] == 'fail': raise RuntimeError('as asked')\n"
        "pathlib.Path(sys.argv[1], os.environ['RANK']).touch()\n"
    )
    return str(path)


@pytest.fixture
def program(tmp_path: Path) -> str:
    """The same as a program: `program FOLDER`."""
    path = tmp_path / "program"
    path.write_text('#!/bin/sh\necho "touching $RANK"\ntouch "$1/$RANK"\n')
    path.chmod(0o755)
    return str(path)


def ranks(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def several(*more: str) -> list[str]:
    return ["--nnodes=1", f"--nproc-per-node={WORKERS}", "--monitor-interval=1", "--start-method=spawn", *more]


ALL = {str(rank) for rank in range(WORKERS)}


def test_a_script_runs_in_each_worker(launch: Any, script: str, folder: Path) -> None:
    launch.main([*several(f"--rdzv-id={uuid.uuid4().int}"), script, str(folder)])
    assert ranks(folder) == ALL


def test_a_static_job_of_one_node_runs(launch: Any, script: str, folder: Path) -> None:
    where = ["--master-addr=localhost", f"--master-port={free_port()}", "--node-rank=0"]
    launch.main([*several(*where), script, str(folder)])
    assert ranks(folder) == ALL


@pytest.mark.parametrize("flags", [several(), ["--nnodes=1"]], ids=["several", "one"])
def test_a_program_runs_and_excludes_a_module(launch: Any, program: str, folder: Path, flags: list[str]) -> None:
    with pytest.raises(ValueError):
        launch.main([*flags, "--no-python", "--module", program, str(folder)])
    launch.main([*flags, "--no-python", program, str(folder)])
    assert ranks(folder) == (ALL if len(flags) > 1 else {"0"})


def test_variables_set_the_defaults_of_flags(
    launch: Any, program: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"NNODES": "1", "NPROC_PER_NODE": str(WORKERS), "RDZV_ID": "job", "START_METHOD": "spawn", "NO_PYTHON": "1"}
    for name, value in {**given, "MODULE": "1"}.items():
        monkeypatch.setenv(f"PET_{name}", value)
    with pytest.raises(ValueError):
        launch.main([program, str(folder)])
    monkeypatch.setenv("PET_MODULE", "0")
    launch.main([program, str(folder)])
    assert ranks(folder) == ALL


def test_auto_counts_cpus_without_accelerators(launch: Any, program: str, folder: Path) -> None:
    with mock.patch("torch.accelerator.is_available", return_value=False):
        launch.main(["--nproc-per-node=auto", "--no-python", program, str(folder)])
    assert len(ranks(folder)) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("device", "kind"), [("cuda", "cuda"), ("cuda", "gpu"), ("xpu", "xpu")])
def test_devices_are_counted(launch: Any, program: str, folder: Path, device: str, kind: str) -> None:
    """`kind`: what torch calls the accelerator; in PyTorch's test "gpu", which no device of torch's is called."""
    counted = {"is_available": True, "device_count": 3}
    with (
        mock.patch.multiple(f"torch.{device}", **{name: mock.Mock(return_value=n) for name, n in counted.items()}),
        mock.patch.multiple("torch.accelerator", **{name: mock.Mock(return_value=n) for name, n in counted.items()}),
        mock.patch("torch.accelerator.current_accelerator", return_value=mock.Mock(type=kind)),
    ):
        for name in ("auto", {"cuda": "gpu"}.get(device, device)):
            launch.main([f"--nproc-per-node={name}", "--no-python", program, str(folder)])
            assert ranks(folder) == {"0", "1", "2"}
            for path in folder.iterdir():
                path.unlink()


def test_a_number_of_workers_is_taken(launch: Any, program: str, folder: Path) -> None:
    launch.main(["--nproc-per-node=3", "--no-python", program, str(folder)])
    assert len(ranks(folder)) == 3


def test_an_unknown_device_is_a_value_error(launch: Any, program: str, folder: Path) -> None:
    with pytest.raises(ValueError):
        launch.main(["--nproc-per-node=unknown", "--no-python", program, str(folder)])


def elastic(port: int, conf: str = "--rdzv-conf='join_timeout=90,last_call_timeout=1,timeout=60'") -> list[str]:
    """An elastic job, its --rdzv-conf within quotes that no shell took off."""
    endpoint = f"--rdzv-endpoint=localhost:{port}"
    return ["--nnodes=1:2", f"--nproc-per-node={WORKERS}", "--rdzv-backend=c10d", endpoint, conf, "--rdzv-id=job"]


def test_one_of_two_nodes_trains_alone(launch: Any, script: str, folder: Path) -> None:
    launch.main([*elastic(free_port()), script, str(folder)])
    assert ranks(folder) == ALL


def test_a_failed_worker_raises_torchs_error(launch: Any, script: str) -> None:
    """And one event of the agent is recorded, by the name that torch's modules know it by."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    with mock.patch("torch.distributed.elastic.events.record") as record, pytest.raises(ChildFailedError) as caught:
        launch.main([*elastic(free_port()), "--max-restarts=0", script, "fail"])
    record.assert_called_once()
    assert {failure.exitcode for failure in caught.value.failures.values()} <= {1, -15}
    assert "Root Cause (first observed failure):" in str(caught.value)


def test_an_error_of_the_agent_is_raised(launch: Any, script: str, folder: Path) -> None:
    """Nobody serves the store: the error of the rendezvous reaches the caller, as torch's."""
    from torch.distributed.elastic.rendezvous.api import RendezvousError

    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    conf = "--rdzv-conf=is_host=false,read_timeout=1"
    with pytest.raises(RendezvousError):
        launch.main(["--nnodes=2", "--rdzv-backend=c10d", endpoint, conf, script, str(folder)])


def test_standalone(launch: Any, script: str, folder: Path) -> None:
    launch.main([*several("--standalone"), script, str(folder)])
    assert ranks(folder) == ALL


def test_a_script_runs_by_its_path(launch: Any, script: str, folder: Path) -> None:
    launch.main(["--run-path", *several(), script, str(folder)])
    assert ranks(folder) == ALL


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_two_agents_form_one_world(launch: Any, script: str, folder: Path) -> None:
    """Of at most two nodes, where one would be enough: the second is there before a last call is over. It is forked
    from a process that has imported torch."""
    args = [*elastic(free_port(), "--rdzv_conf=timeout=60"), "--monitor-interval=1", "--start-method=spawn", script]
    args.append(str(folder))
    other = multiprocessing.Process(target=launch.main, args=[args])
    other.start()
    launch.main(args)
    other.join(60)
    assert other.exitcode == 0
    assert ranks(folder) == {str(rank) for rank in range(2 * WORKERS)}


def test_nodes_are_read_as_a_range(launch: Any) -> None:
    assert launch.parse_min_max_nnodes("1") == (1, 1)
    assert launch.parse_min_max_nnodes("2:20") == (2, 20)
    with pytest.raises(RuntimeError):
        launch.parse_min_max_nnodes("2:20:30")


@pytest.fixture
def asks_torch(tmp_path: Path) -> str:
    """A worker that writes whether it was launched by torchelastic: `asks.py FILE`."""
    path = tmp_path / "asks.py"
    path.write_text(
        "import sys, torch.distributed as dist\nopen(sys.argv[1], 'w').write(str(dist.is_torchelastic_launched()))\n"
    )
    return str(path)


def test_torch_sees_that_it_was_launched(launch: Any, asks_torch: str, tmp_path: Path) -> None:
    launch.main(["--run-path", "--nproc-per-node=1", asks_torch, str(tmp_path / "out")])
    assert (tmp_path / "out").read_text() == "True"


def test_logs_specs_are_loaded_by_name(launch: Any, asks_torch: str, tmp_path: Path) -> None:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

    with mock.patch("torch.distributed.run.metadata") as metadata:
        group = metadata.entry_points.return_value.select.return_value
        group.__getitem__ = lambda self, name: mock.Mock(load=lambda: DefaultLogsSpecs)
        launch.main(["--run-path", "--nproc-per-node=1", "--logs_specs=default", asks_torch, str(tmp_path / "out")])
    assert (tmp_path / "out").read_text() == "True"


def test_unknown_logs_specs_are_a_value_error(launch: Any, asks_torch: str) -> None:
    with pytest.raises(ValueError):
        launch.main(["--run-path", "--nproc-per-node=1", "--logs_specs=NOBODYS", asks_torch])


@pytest.mark.parametrize("method", ["tcp", "env"])
def test_process_groups_form_by_either_method(launch: Any, tmp_path: Path, method: str) -> None:
    port = free_port()
    path = tmp_path / "group.py"
    path.write_text(
        "import os, sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo', init_method=sys.argv[1], rank=int(os.environ['RANK']),"
        " world_size=int(os.environ['WORLD_SIZE']))\n"
        "one = torch.ones(1)\ndist.all_reduce(one)\n"
        f"assert one.item() == {WORKERS}\n"
        "dist.destroy_process_group()\n"
    )
    url = f"tcp://localhost:{port}" if method == "tcp" else "env://"
    launch.main(["--run-path", *several("--master-addr=localhost", f"--master-port={port}"), str(path), url])


@pytest.mark.filterwarnings("ignore:Unable to enable fault handler", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_teed_reaches_the_programs_own_stdout(
    launch: Any, program: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the descriptor 1, which `redirect_stdout` does not touch."""
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[rank${rank}]: ")
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        launch.main([*several("--redirect=3", "--tee=3", "--no-python"), program, str(folder)])
    assert {f"[rank{rank}]: touching {rank}" for rank in range(WORKERS)} <= set(out.getvalue().splitlines())


def test_a_wrong_setting_is_a_value_error_as_torchs_is() -> None:
    """For code that catches what torchrun raises."""
    assert issubclass(UsageError, ValueError)
