"""A worker's environment and command: torchrun's, variable by variable, and five variables of ours."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_agent.agent.errors import InternalError, UsageError
from elastic_agent.agent.lifecycle.restart_policy import Policy
from elastic_agent.agent.processes.environment import PER_WORKER, worker_argv, worker_environment
from elastic_agent.agent.spec import WorkerSpec
from elastic_agent.rendezvous.failures import Ending, EndKind
from elastic_agent.rendezvous.records import Member, Round, RoundPhase

MEMBERS = (
    Member("id-a", "a:1", 0, 0, 2, "trainer", 0),
    Member("id-b", "b:1", 1, 2, 1, "evaluator", 0),
    Member("id-c", "c:1", 2, 3, 4, "trainer", 2),
)
ROUND = Round(
    version=7,
    epoch=1,
    number=3,
    phase=RoundPhase.RUNNING,
    because="all are here",
    members=MEMBERS,
    ended=Ending(2, EndKind.FAILURE, "rank 4 on c:1 failed"),
    restarts=2,
)
OURS = {
    "ELASTIC_AGENT_ROUND",
    "ELASTIC_AGENT_RESTARTS",
    "ELASTIC_AGENT_LAST_ROUND_ENDED",
    "ELASTIC_AGENT_NODE",
    "ELASTIC_AGENT_READY_FILE",
    "ELASTIC_AGENT_STEPS",
}


def make_spec(**changes: object) -> WorkerSpec:
    spec = WorkerSpec(
        argv=("python", "-u", "train.py"),
        title="train.py",
        run_id="job 1",
        count_workers=lambda: 4,
        role="trainer",
        restarts=Policy(max_restarts=5),
        base_env={"HOME": "/home/me"},
    )
    return dataclasses.replace(spec, **changes)  # type: ignore[arg-type]


def environment(
    spec: WorkerSpec, local_rank: int = 1, member: Member = MEMBERS[2], at: Round = ROUND
) -> dict[str, str]:
    return worker_environment(spec, at, member, local_rank, 1, "10.0.0.1", 4242, "/logs/1/error.json")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LOCAL_RANK", "1"),
        ("RANK", "4"),
        ("GROUP_RANK", "2"),
        ("ROLE_RANK", "3"),
        ("ROLE_NAME", "trainer"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("WORLD_SIZE", "7"),
        ("GROUP_WORLD_SIZE", "3"),
        ("ROLE_WORLD_SIZE", "6"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "4242"),
        ("TORCHELASTIC_RESTART_COUNT", "1"),
        ("TORCHELASTIC_MAX_RESTARTS", "5"),
        ("TORCHELASTIC_RUN_ID", "job 1"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("TORCHELASTIC_ERROR_FILE", "/logs/1/error.json"),
        ("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        ("ELASTIC_AGENT_ROUND", "3"),
        ("ELASTIC_AGENT_RESTARTS", "2"),
        ("ELASTIC_AGENT_LAST_ROUND_ENDED", "rank 4 on c:1 failed"),
        ("ELASTIC_AGENT_NODE", "id-c"),
        ("HOME", "/home/me"),
    ],
)
def test_each_variable_is_torchruns(name: str, value: str) -> None:
    """Every variable has torchrun's meaning and torchrun's spelling of it."""
    assert environment(make_spec())[name] == value


def test_ranks_of_a_round_are_distinct_and_without_gaps() -> None:
    """Over all members, RANK counts from 0 without a gap, and so does ROLE_RANK within each role."""
    spec = make_spec()
    envs = [environment(spec, local, member) for member in MEMBERS for local in range(member.nproc)]
    assert [env["RANK"] for env in envs] == [str(rank) for rank in range(7)]
    roles = [env["ROLE_RANK"] for env in envs if env["ROLE_NAME"] == "trainer"]
    assert roles == [str(rank) for rank in range(6)]


def test_the_reason_for_the_last_rounds_end_is_empty_in_the_first_round() -> None:
    """ELASTIC_AGENT_LAST_ROUND_ENDED is set, to nothing, while no round has ended."""
    assert environment(make_spec(), at=dataclasses.replace(ROUND, ended=None))["ELASTIC_AGENT_LAST_ROUND_ENDED"] == ""


def test_the_users_nccl_setting_is_kept() -> None:
    """TORCH_NCCL_ASYNC_ERROR_HANDLING is set only where the user has not set it."""
    env = environment(make_spec(base_env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}))
    assert env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


def test_variables_of_an_outer_job_are_replaced() -> None:
    """An agent that is started by a worker gives its own workers none of the outer job's ranks and reasons."""
    outer = environment(make_spec())
    inner = environment(make_spec(base_env=outer), 0, MEMBERS[0], dataclasses.replace(ROUND, ended=None, number=1))
    assert (inner["RANK"], inner["ELASTIC_AGENT_ROUND"], inner["ELASTIC_AGENT_LAST_ROUND_ENDED"]) == ("0", "1", "")


def test_a_nul_in_a_reason_from_another_node_is_removed() -> None:
    """With a NUL in a variable, exec would fail."""
    ended = Ending(2, EndKind.FAILURE, "bad\0words")
    env = environment(make_spec(), at=dataclasses.replace(ROUND, ended=ended))
    assert env["ELASTIC_AGENT_LAST_ROUND_ENDED"] == "badwords"


def test_base_environment_is_not_changed() -> None:
    """The agent's own environment is only read."""
    spec = make_spec()
    environment(spec)
    assert spec.base_env == {"HOME": "/home/me"}


@pytest.mark.parametrize(
    ("listed", "device"), [(None, "1"), ("4,5,6,7", "5"), ("4, 5 ,6", "5"), ("GPU-aa,MIG-bb", "MIG-bb")]
)
def test_virtual_local_rank_shows_one_device(listed: str | None, device: str) -> None:
    """LOCAL_RANK is 0, and CUDA_VISIBLE_DEVICES is the entry at the worker's local rank in the agent's list."""
    base = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    env = environment(make_spec(virtual_local_rank=True, base_env=base))
    assert (env["LOCAL_RANK"], env["CUDA_VISIBLE_DEVICES"], env["RANK"]) == ("0", device, "4")


def test_virtual_local_rank_without_a_device_is_an_error() -> None:
    """For a worker beyond the end of CUDA_VISIBLE_DEVICES, the error names the list and its length."""
    spec = make_spec(virtual_local_rank=True, base_env={"CUDA_VISIBLE_DEVICES": "0"})
    with pytest.raises(UsageError, match=r"local rank 1 has no device in CUDA_VISIBLE_DEVICES='0', which lists 1"):
        environment(spec)


def test_a_local_rank_that_the_node_does_not_have_is_an_internal_error() -> None:
    """The error names the local rank and the node's number of workers."""
    with pytest.raises(InternalError, match="local rank 4 of a node with 4 workers"):
        environment(make_spec(), 4)


@pytest.mark.parametrize(
    ("typed", "given"),
    [
        ("${local_rank}", "1"),
        ("$local_rank", "1"),
        ("--out=run_${local_rank}.txt", "--out=run_1.txt"),
        ("$HOME/$$x", "$HOME/$x"),
        ("100$", "100$"),
        ("plain", "plain"),
    ],
)
def test_local_rank_is_substituted_as_torch_does(typed: str, given: str) -> None:
    """Arguments go through string.Template.safe_substitute, which torch 2.13 uses; the results are the same."""
    from torch.distributed.elastic.utils.api import macros

    assert worker_argv(make_spec(argv=("python", typed)), 1) == ("python", given)
    assert macros.substitute([typed], "1") == [given]


def test_the_program_itself_is_not_substituted() -> None:
    """Like torch, only arguments are substituted."""
    assert worker_argv(make_spec(argv=("./$local_rank", "$local_rank")), 2) == ("./$local_rank", "2")


@pytest.mark.slow
def test_same_variables_as_a_real_torchrun_worker(tmp_path: Path) -> None:
    """A worker has all variables of the real torchrun's, in the same form, and five of ours."""
    script, dump = tmp_path / "dump.py", tmp_path / "env.json"
    script.write_text(
        "import json, os, sys\nif os.environ['RANK'] == '1':\n    json.dump(dict(os.environ), open(sys.argv[1], 'w'))\n"
    )
    outside = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_CTYPE": "C.UTF-8", "MINE": "kept"}
    flags = ["--standalone", "--nproc-per-node=2", "--max-restarts=5", "--role=trainer", f"--log-dir={tmp_path}"]
    command = [sys.executable, "-m", "torch.distributed.run", *flags, str(script), str(dump)]
    subprocess.run(command, env=outside, check=True, timeout=60, capture_output=True)
    theirs = json.loads(dump.read_text())

    alone = Round(1, 1, 1, RoundPhase.RUNNING, "", (Member("id", "n:1", 0, 0, 2, "trainer", 0),))
    spec = make_spec(base_env={**outside, "OMP_NUM_THREADS": "1"}, run_id=theirs["TORCHELASTIC_RUN_ID"])
    ours = worker_environment(
        spec, alone, alone.members[0], 1, 0, "localhost", int(theirs["MASTER_PORT"]), theirs["TORCHELASTIC_ERROR_FILE"]
    )
    assert ours.keys() - theirs.keys() == OURS
    assert {name for name in theirs if ours.get(name) != theirs[name]} == set()


def test_the_store_is_the_agents_unless_rank_0_is_to_serve_it() -> None:
    """TORCHELASTIC_USE_AGENT_STORE, in torchrun's spelling: with True, torch makes every rank a client."""
    served = [environment(make_spec(worker_store=who)) for who in ("agent", "rank0")]
    assert [env["TORCHELASTIC_USE_AGENT_STORE"] for env in served] == ["True", "False"]


def test_per_worker_lists_all_variables_that_are_set() -> None:
    """Only these differ between a worker's environment and the agent's own. Preloading relies on it."""
    spec = make_spec(virtual_local_rank=True)
    made = environment(spec)
    assert {name for name in made if made.get(name) != spec.base_env.get(name)} == set(PER_WORKER)
