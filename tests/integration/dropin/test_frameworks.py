"""Launchers of others with the switch on: their jobs run on our agent.

Real accelerate, Lightning Fabric, DeepSpeed and torchx, in environments beside the tests' own. Workers print what
they were given; a world that was launched twice, or by torch's agent, shows in it.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_agent.launcher.as_torchrun.place import SHIMS, SITE, variables
from support.network import free_port
from support.procfs import kill_and_read
from support.side_environments import side_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RUN_S = 240
# Each line in one call: a nested launcher's workers share a pipe, and the two calls of an unbuffered `print` mix there.
SHOW = (
    "import os, sys\n"
    "names = 'RANK WORLD_SIZE ELASTIC_AGENT_ROUND ACCELERATE_USE_FSDP'.split()\n"
    "shown = ['worker', *(os.environ.get(name) for name in names)]\n"
    "os.write(1, ' '.join(map(str, shown)).encode() + b'\\n')\n"
)


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of the environment that has the frameworks."""
    return side_python(".frameworks")


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "show.py"
    path.write_text(SHOW)
    return str(path)


def run(
    command: list[str], *, stdin: str = "", fails: bool = False, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command with few threads and no GPU; returns it with what it printed."""
    quiet = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command,
        env={**os.environ, **quiet, **(env or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert fails is (done.returncode != 0), done.stdout + done.stderr
    return done


def as_torchrun(python: str, *command: str) -> list[str]:
    return [python, "-m", "elastic_agent", "--as-torchrun", *command]


def workers(done: subprocess.CompletedProcess[str]) -> set[str]:
    """What the workers printed, each line once; more than one of a kind is a job that was launched twice."""
    print(done.stdout, done.stderr, sep="\n")  # shown with a failure
    lines = [line for line in done.stdout.splitlines() if line.startswith("worker ")]
    assert len(lines) == len(set(lines)), lines
    return set(lines)


TWO = {"worker 0 2 1 None", "worker 1 2 1 None"}
"""Two workers of one world, in round 1 of our agent."""


def accelerate(*words: str) -> list[str]:
    """accelerate's launcher on one node with a port of this test: the one it takes by itself may be another's."""
    node = ["--num_machines", "1", "--main_process_port", str(free_port())]
    return ["-m", "accelerate.commands.launch", *node, *words]


TWO_ACCELERATED = ["--multi_gpu", "--num_processes", "2", "--mixed_precision", "no", "--dynamo_backend", "no"]


def test_accelerate_launches_on_the_agent(python: str, script: str) -> None:
    command = accelerate(*TWO_ACCELERATED, script)
    assert workers(run(as_torchrun(python, python, *command))) == TWO


def test_accelerate_with_an_fsdp_config_launches_one_world(python: str, script: str, tmp_path: Path) -> None:
    """Two workers, not four: nothing launches within a worker of another launcher."""
    config = tmp_path / "fsdp.yaml"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: 'no'\nnum_machines: 1\n"
        "num_processes: 2\nuse_cpu: false\nfsdp_config:\n  fsdp_version: 2\n"
    )
    command = accelerate("--config_file", str(config), script)
    assert workers(run(as_torchrun(python, python, *command))) == {"worker 0 2 1 true", "worker 1 2 1 true"}


def test_fabric_launches_on_the_agent(python: str, script: str) -> None:
    """With a port of this test: the one it takes by itself may be another's."""
    ranks = ["--accelerator=cpu", "--devices=2", "--strategy=ddp", f"--main-port={free_port()}"]
    command = ["-m", "lightning_fabric.cli", *ranks, script]
    assert workers(run(as_torchrun(python, python, *command))) == TWO


def test_torchx_launches_on_the_agent(python: str, script: str, tmp_path: Path) -> None:
    """Its own launcher for one host, which starts torchrun by name. It prefixes what the job prints."""
    torchx = [str(Path(python).with_name("torchx")), "run", "-s", "local_cwd", "dist.ddp", "-j", "1x2", "--script"]
    done = run(as_torchrun(python, *torchx, script))
    print(done.stdout, done.stderr, sep="\n")  # shown with a failure
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "worker " in line]
    assert sorted(line[line.index("worker ") :] for line in lines if "workers" not in line) == sorted(TWO)


DEEPSPEED = {"DS_ACCELERATOR": "cpu"}


@pytest.fixture(scope="module")
def deepspeeds_python() -> str:
    """An environment of its own: accelerate uses deepspeed where it finds it."""
    return side_python(".deepspeed")


def test_deepspeed_launches_on_the_agent(deepspeeds_python: str, tmp_path: Path) -> None:
    """Its program, with what it gives its workers; a worker that fails is started again, as the agent is asked to."""
    script = tmp_path / "show.py"
    more = SHOW.replace("names)]", "[*names, 'LOCAL_SIZE', 'CROSS_RANK', 'CROSS_SIZE']), *sys.argv[1:]]")
    script.write_text(f"{more}sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == os.environ['RANK'] == '0')\n")
    ranks = ["--num_gpus", "2", "--master_port", str(free_port())]
    deepspeed = [str(Path(deepspeeds_python).with_name("deepspeed")), *ranks, str(script), "--lr", "1"]
    restarting = [deepspeeds_python, "-m", "elastic_agent", "--max-restarts", "1", "--as-torchrun", *deepspeed]
    done = run(restarting, env=DEEPSPEED)
    again = {line for line in workers(done) if line.split()[3] == "2"}
    assert again == {f"worker {rank} 2 2 None 2 0 1 --local_rank={rank} --lr 1" for rank in range(2)}


def test_deepspeeds_launcher_of_each_of_two_nodes_is_the_agent(deepspeeds_python: str, script: str) -> None:
    """As its runner starts it through pdsh, with the switch in PYTHONPATH. A job that fails has its exit code."""
    world = base64.urlsafe_b64encode(json.dumps({"one": [0], "two": [0, 1]}).encode()).decode()
    common = ["-m", "deepspeed.launcher.launch", f"--world_info={world}", f"--master_port={free_port()}"]
    env = {**os.environ, **DEEPSPEED, **variables(os.environ), "OMP_NUM_THREADS": "1"}
    nodes = [
        subprocess.Popen(
            [deepspeeds_python, "-u", *common, f"--node_rank={rank}", "--no_local_rank", script],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        told = [node.communicate(timeout=RUN_S) for node in nodes]
    finally:
        for node in nodes:
            kill_and_read(node)
    assert [node.returncode for node in nodes] == [0, 0], told
    lines = [line for out, _ in told for line in out.splitlines() if line.startswith("worker ")]
    assert sorted(lines) == [f"worker {rank} 3 1 None" for rank in range(3)]


def test_a_notebooks_function_runs_on_the_agent_and_prints_in_the_notebook(python: str) -> None:
    """notebook_launcher with a function that no worker can import, in a program whose stdout is an object, as a
    notebook's is."""
    cell = (
        "import contextlib, io, os\n"
        "factor = 21\n"
        "def train(n):\n"
        "    print('trained', n * factor, os.environ['WORLD_SIZE'], os.environ['ELASTIC_AGENT_ROUND'], flush=True)\n"
        "from accelerate import notebook_launcher\n"
        "out = io.StringIO()\n"
        "with contextlib.redirect_stdout(out):\n"
        "    notebook_launcher(train, args=(2,), num_processes=2, use_port='0')\n"
        "print('in the notebook:', out.getvalue().count('trained 42 2 1'))\n"
    )
    port = cell.replace("use_port='0'", "rdzv_backend='c10d', rdzv_endpoint='localhost:0'")
    done = run([python, "-"], stdin=port, env=variables(os.environ))
    assert "in the notebook: 2" in done.stdout


@pytest.mark.parametrize("module", ["run", "launch"])
def test_torchs_own_commands_run_on_the_agent(tmp_path: Path, module: str) -> None:
    """`python -m torch.distributed.run`, and `launch`, whose script gets --local-rank unless --use-env is given."""
    path = tmp_path / "show.py"
    path.write_text(SHOW.replace("names)]", "names), sys.argv[1:]]"))
    command = ["-m", f"torch.distributed.{module}", "--nproc-per-node=2"]
    given = [f"['--local-rank={rank}']" if module == "launch" else "[]" for rank in range(2)]
    done = run(as_torchrun(sys.executable, sys.executable, *command, str(path)))
    assert workers(done) == {f"worker {rank} 2 1 None {given[rank]}" for rank in range(2)}
    if module == "launch":
        for spelling in ("--use-env", "--use_env"):
            done = run(as_torchrun(sys.executable, sys.executable, *command, spelling, str(path)))
            assert workers(done) == {f"worker {rank} 2 1 None []" for rank in range(2)}


def test_torchrun_by_its_name_is_the_agent(script: str) -> None:
    """A tool that starts `torchrun` finds it first on PATH; torch is not imported for it."""
    done = run(as_torchrun(sys.executable, "torchrun", "--nproc-per-node=2", script))
    assert workers(done) == TWO
    assert "elastic-agent: exit 0:" in done.stderr


def test_the_variables_turn_the_switch_on_in_a_shell(script: str) -> None:
    """`eval "$(elastic-agent --as-torchrun)"`, and everything in that shell is under it."""
    agent = f"'{sys.executable}' -m elastic_agent --as-torchrun"
    done = run(["sh", "-c", f'eval "$({agent})"; torchrun --nproc-per-node=2 "{script}"'])
    assert workers(done) == TWO


def test_flags_beside_the_switch_reach_the_launch_within(tmp_path: Path) -> None:
    """--max-restarts of torchrun's and --restart-window of ours: the script fails once, and is started again."""
    script = tmp_path / "fail_once.py"
    script.write_text(
        "import os\nprint('worker', os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\n"
        "raise SystemExit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n"
    )
    flags = ["--restart-window", "60", "--max-restarts=1"]
    command = [sys.executable, "-m", "elastic_agent", *flags, "--as-torchrun", sys.executable]
    done = run([*command, "-m", "torch.distributed.run", str(script)])
    assert workers(done) == {"worker 0", "worker 1"}
    wrong = run(
        [*command[:3], "--restart-window", "soon", *command[5:], "-m", "torch.distributed.run", "x"], fails=True
    )
    assert "PET_RESTART_WINDOW is 'soon'" in wrong.stderr or "--restart-window is 'soon'" in wrong.stderr


def test_a_launcher_within_a_worker_works(python: str, script: str) -> None:
    """`elastic-agent -m accelerate.commands.launch`: torch's agent within our worker, and ours with the switch on."""
    nested = ["--nproc-per-node=1", *accelerate(*TWO_ACCELERATED, script)]
    assert workers(run([python, "-m", "elastic_agent", *nested])) == TWO
    assert workers(run([python, "-m", "elastic_agent", *nested], env=variables(os.environ))) == TWO


def test_an_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    """The one that the switch's folder hides."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.seen_by_the_user = True\n")
    path = os.pathsep.join([SITE, str(tmp_path), os.environ["PYTHONPATH"]])
    done = run(
        [sys.executable, "-c", "import sys; print(sys.seen_by_the_user, 'torch' in sys.modules)"],
        env={"PYTHONPATH": path},
    )
    assert done.stdout.split() == ["True", "False"]


def test_the_switch_is_the_same_when_turned_on_twice() -> None:
    once = variables({"PATH": "/bin"})
    assert once["PATH"] == f"{SHIMS}:/bin"
    assert variables(once) == once


def test_install_takes_torchs_place_in_this_process(tmp_path: Path) -> None:
    """In a program that has torch already, and in what it starts."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os\nimport torch.distributed.run as torchrun\n"
        "from elastic_agent.torchrun import elastic_launch, install\n"
        "install()\nfrom torch.distributed.launcher import elastic_launch as theirs\n"
        "print(torchrun.elastic_launch is theirs is elastic_launch, os.environ['PATH'].split(':')[0])\n"
    )
    assert run([sys.executable, str(program)]).stdout.split() == ["True", SHIMS]
