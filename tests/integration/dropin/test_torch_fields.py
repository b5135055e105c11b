"""LaunchConfig's fields of torch's that hold objects, entry points of every kind, and where output and events go."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elastic_agent import LaunchConfig, Module, Program, UsageError, WorkersFailed, launch
from elastic_agent.agent.processes import numa
from elastic_agent.launcher.as_torchrun.settings import settings_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

RUN_S = 120
HANDLER = "torch.distributed.elastic.events.handlers"


@pytest.fixture(autouse=True)
def _places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def program(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(text)
    return path


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


# -- entry points ----------------------------------------------------------------------------------------------------


def test_a_module_is_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `python -m` finds it; one that is not there is a usage error."""
    (tmp_path / "trainer.py").write_text("import sys; open(sys.argv[1], 'w').write(__name__)")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert launch(LaunchConfig(), Module("trainer"), tmp_path / "out") == {0: None}
    assert (tmp_path / "out").read_text() == "__main__"
    with pytest.raises(UsageError, match="the module 'nobodys' cannot be found"):
        launch(LaunchConfig(), Module("nobodys"))


def test_a_program_is_launched(tmp_path: Path) -> None:
    """On PATH or by its path; one that is not there is a usage error."""
    assert launch(LaunchConfig(), Program("touch"), tmp_path / "out") == {0: None}
    assert (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="'nobodys' is not on PATH"):
        launch(LaunchConfig(), Program("nobodys"))


def test_the_title_of_a_program_is_what_the_job_is_called(tmp_path: Path) -> None:
    """elastic_launch names the script of a Python command."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from elastic_agent.torchrun import elastic_launch

    script = program(tmp_path, "raise SystemExit(3)")
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(LaunchConfig(max_restarts=0), sys.executable)("-u", str(script))
    assert f"{script} FAILED" in str(caught.value)
    assert isinstance(caught.value.__cause__, WorkersFailed)
    assert caught.value.failures[0].exitcode == 3


# -- devices and CPUs -------------------------------------------------------------------------------------------------


def test_each_worker_has_its_own_device_and_the_cpus_near_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With virtual local ranks each worker takes its device for the first; bound to CPUs, it runs on those of that
    device's NUMA node. The GPUs and /sys of this host are made up; its CPUs are not."""
    cpus = sorted(os.sched_getaffinity(0))
    near = {"0000:40:00.0": cpus[0], "0000:70:00.0": cpus[-1]}
    for node, (gpu, cpu) in enumerate(near.items()):
        for path, text in (
            (f"bus/pci/devices/{gpu}/numa_node", f"{node}"),
            (f"devices/system/node/node{node}/cpulist", f"{cpu}"),
        ):
            file = tmp_path / "host" / "sys" / path
            file.parent.mkdir(parents=True)
            file.write_text(text)
    all_gpus = {f"GPU-{number}": f"0000:{number}0:00.0" for number in range(8)}
    monkeypatch.setattr(numa, "_nvidia_gpus", lambda: all_gpus)
    monkeypatch.setattr(numa, "cpus_of", partial(numa.cpus_of, root=str(tmp_path / "host")))
    shown = "os.environ['LOCAL_RANK'], os.environ['CUDA_VISIBLE_DEVICES'], *os.sched_getaffinity(0)"
    script = program(tmp_path, f"import os; print({shown}, file=open('out' + os.environ['RANK'], 'w'))")
    config = LaunchConfig(
        nproc_per_node=2, numa_options="node", virtual_local_rank=True, env={"CUDA_VISIBLE_DEVICES": "4,7"}
    )
    launch(config, script)
    assert (tmp_path / "out0").read_text() == f"0 4 {cpus[0]}\n"
    assert (tmp_path / "out1").read_text() == f"0 7 {cpus[-1]}\n"


# -- torch's objects -------------------------------------------------------------------------------------------------


def test_torchs_configuration_is_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each field of torch's LaunchConfig reaches ours, under the same name; our own come from their variables."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig as Torchs
    from torch.numa.binding import AffinityMode, NumaOptions

    theirs = Torchs(
        1, 2, 3,
        logs_specs=DefaultLogsSpecs("/dev/null", Std.OUT, {1: Std.ALL}, {0, 1}),
        run_id="job", role="r", rdzv_endpoint="h:1", rdzv_backend="c10d", rdzv_configs={"join_timeout": "9"},
        max_restarts=4, monitor_interval=0.5, start_method="fork", log_line_prefix_template="p", metrics_cfg={"a": "b"},
        local_addr="l", event_log_handler="console", numa_options=NumaOptions(AffinityMode.SOCKET, True),
        signals_to_handle="SIGTERM", duplicate_stdout_filters=["x"], virtual_local_rank=True, shutdown_timeout=7,
    )  # fmt: skip
    ours = settings_of(theirs, {"PET_PRELOAD": "torch", "PET_NNODES": "9"})
    same = "min_nodes max_nodes nproc_per_node logs_specs run_id role rdzv_endpoint rdzv_backend max_restarts"
    same += " monitor_interval log_line_prefix_template metrics_cfg local_addr event_log_handler numa_options"
    same += " signals_to_handle duplicate_stdout_filters virtual_local_rank shutdown_timeout"
    assert {name: getattr(ours, name) for name in same.split()} == {
        name: getattr(theirs, name) for name in same.split()
    }
    assert (ours.rdzv_configs, ours.preload, ours.start_method) == ({"join_timeout": "9"}, ("torch",), "spawn")
    ours.validate({})


def test_a_field_of_a_newer_torch_is_refused_by_its_name() -> None:
    from dataclasses import dataclass

    from torch.distributed.launcher.api import LaunchConfig as Torchs

    @dataclass
    class Newer(Torchs):
        warp: int = 0

    assert settings_of(Newer(1, 1, 1), {}).min_nodes == 1
    with pytest.raises(UsageError, match="warp=9, which this version does not know"):
        settings_of(Newer(1, 1, 1, warp=9), {})


def test_default_logs_specs_are_the_same_as_our_fields(tmp_path: Path) -> None:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

    specs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects=Std.OUT)
    launch(LaunchConfig(logs_specs=specs), program(tmp_path, "print('kept')"))
    (path,) = tmp_path.glob("logs/*/attempt_0/0/stdout.log")
    assert path.read_text() == "kept\n"


def test_rdzv_timeout_is_the_timeout_of_the_rendezvous() -> None:
    LaunchConfig(rdzv_timeout=5, rdzv_backend="static").validate({})
    with pytest.raises(UsageError, match="timeout"):
        LaunchConfig(rdzv_timeout=-5, rdzv_backend="static").validate({})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("logs_specs", object(), "logs_specs is <object"),
        ("numa_options", "near", "numa_options is 'near'; give one of node, socket"),
        ("event_log_handler", "nobodys", "--event-log-handler is 'nobodys', which is not registered"),
    ],
)
def test_a_wrong_object_is_refused_by_its_name(field: str, value: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        LaunchConfig(**{field: value}).validate({})


SPECS = """
import os
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

class Flat(LogsSpecs):
    '''All files in one folder; rank 0 is shown too, rank 2 nowhere.'''

    @property
    def root_log_dir(self):
        return str(self._root_log_dir)

    def reify(self, envs):
        os.makedirs(self.root_log_dir, exist_ok=True)
        paths = {rank: f"{self.root_log_dir}/{env['RANK']}.out" for rank, env in envs.items()}
        for env in envs.values():
            env["ADDED"] = "by the specs"
        paths[2] = os.devnull
        return LogsDest(
            stdouts=paths, stderrs=dict.fromkeys(envs, ""), tee_stdouts={0: paths[0]}, tee_stderrs={},
            error_files={rank: f"{self.root_log_dir}/{rank}.json" for rank in envs},
            filtered_stdout=f"{self.root_log_dir}/filtered", filtered_stderr="",
        )
"""


def test_logs_specs_of_another_package_say_where_logs_go(tmp_path: Path) -> None:
    """--logs-specs NAME, an entry point of torchrun.logs_specs: its files, its console, its variables."""
    package = tmp_path / "package"
    info = package / "flat-1.dist-info"
    info.mkdir(parents=True)
    (package / "flat.py").write_text(SPECS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flat\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torchrun.logs_specs]\nflat = flat:Flat\n")
    script = program(
        tmp_path,
        "import os\nprint('from', os.environ['RANK'], os.environ['ADDED'], flush=True)\n"
        "print(os.path.basename(os.environ['TORCHELASTIC_ERROR_FILE']), flush=True)\n",
    )
    logs = tmp_path / "flat logs"
    path = os.pathsep.join([str(package), os.environ["PYTHONPATH"]])
    flags = ["--nproc-per-node=3", "--logs-specs=flat", f"--log-dir={logs}", "--duplicate-stdout-filters=from"]
    done = run("-m", "elastic_agent", *flags, str(script), PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[default0]:from 0 by the specs", "[default0]:0.json"]
    assert {path.name: path.read_text() for path in logs.iterdir()} == {
        "0.out": "from 0 by the specs\n0.json\n",
        "1.out": "from 1 by the specs\n1.json\n",
        "filtered": "[default0]:from 0 by the specs\n",
    }
    done = run("-m", "elastic_agent", "--logs-specs=nobodys", str(script), PYTHONPATH=path)
    assert done.returncode == 2
    assert "no package has an entry point torchrun.logs_specs of that name" in done.stderr


# -- output and events -----------------------------------------------------------------------------------------------


def test_output_reaches_the_programs_own_stdout(tmp_path: Path) -> None:
    """In a notebook `sys.stdout` is an object without a descriptor; a character whose bytes come apart is whole."""
    script = program(
        tmp_path,
        "import os\nos.write(1, b'gr\\xc3')\nos.write(1, b'\\xbcn\\n')\nos.write(2, b'err\\n')\n",
    )
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        launch(LaunchConfig(), script)
    assert (out.getvalue(), err.getvalue()) == ("grün\n", "err\n")


def test_output_goes_to_the_descriptor_where_the_program_has_not_replaced_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    launch(LaunchConfig(), program(tmp_path, "print('plain')"))
    assert capfd.readouterr().out == "plain\n"


def test_a_stdout_that_raises_ends_no_worker(tmp_path: Path) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise RuntimeError("no more room")

    with contextlib.redirect_stdout(Broken()):
        assert launch(LaunchConfig(), program(tmp_path, "print('lost')")) == {0: None}


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"name"')]


@pytest.mark.parametrize("launcher", ["torch.distributed.run", "elastic_agent"])
def test_the_console_handler_writes_torchs_events(tmp_path: Path, launcher: str) -> None:
    """The same events with the same facts under both."""
    script = program(tmp_path, "import os; raise SystemExit(3 * (os.environ['RANK'] == '1'))")
    done = run("-m", launcher, "--event-log-handler=console", "--nproc-per-node=2", "--role=r", str(script))
    assert done.returncode == 1
    seen = [event for event in events_of(done.stderr) if event["metadata"].get("duration_ms") is None]
    kinds = {(event["source"], event["name"], event["metadata"]["global_rank"]) for event in seen}
    assert ("WORKER", "torchelastic.worker.status.FAILED", 1) in kinds
    assert ("AGENT", "torchelastic.worker.status.SUCCEEDED", None) in kinds
    assert {event["metadata"]["role"] for event in seen} == {"r"}
    assert {tuple(event) for event in seen} == {("name", "source", "timestamp", "metadata")}
    facts = "run_id global_rank group_rank worker_id role hostname state total_run_time rdzv_backend raw_error metadata"
    assert {*facts.split(), "agent_restarts", "duration_ms"} == set(seen[0]["metadata"])


def test_a_stderr_that_takes_nothing_changes_no_end(tmp_path: Path) -> None:
    """The handler prints there: the exit status and the summary are those of the job all the same."""
    script, summary = program(tmp_path, "raise SystemExit(5)"), tmp_path / "summary.json"
    command = [sys.executable, "-m", "elastic_agent", "--event-log-handler=console", str(script)]
    env = {**os.environ, "ELASTIC_AGENT_SUMMARY": str(summary)}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stderr=full, env=env, timeout=60, check=False)
    assert done.returncode == 1
    assert json.loads(summary.read_text())["cause"]["rank"] == 0


def test_a_registered_handler_gets_the_events(tmp_path: Path) -> None:
    """One that the program itself has registered in torch, by its name; the agent's own events, too, as they happen,
    which torch's handlers do not get."""
    mark = tmp_path / "mark"
    script = program(
        tmp_path, f"import os\nif not os.path.exists({str(mark)!r}):\n    open({str(mark)!r}, 'w')\n    exit(3)"
    )
    (tmp_path / "main.py").write_text(
        "import logging, sys\n"
        f"from {HANDLER} import _log_handlers\n"
        "_log_handlers['ours'] = logging.StreamHandler(sys.stdout)\n"
        "from elastic_agent import LaunchConfig, launch\n"
        f"launch(LaunchConfig(event_log_handler='ours', max_restarts=1), {str(script)!r})\n"
    )
    done = run(str(tmp_path / "main.py"))
    theirs = events_of(done.stdout)
    own = [event for event in theirs if event["name"].startswith("elastic_agent.")]
    assert [(event["source"], event["metadata"]["state"]) for event in theirs if event not in own] == [
        ("WORKER", "SUCCEEDED"),
        ("AGENT", "SUCCEEDED"),
    ], done.stderr
    rounds = [event["metadata"] for event in own if event["name"] == "elastic_agent.announced"]
    assert [each["round"] for each in rounds if each["phase"] == "running"] == [1, 2]
    assert next(each["ended"] for each in rounds if each["round"] == 2) == "failure"
    failed = next(event["metadata"] for event in own if event["metadata"]["happened"] == "WorkerExited")
    assert (failed["id"], "exit code 3" in failed["failure"]) == ("exit/1/0", True)
    assert own[-1]["name"] == "elastic_agent.concluded"
    assert all(event["timestamp"] > 1e12 for event in own)
