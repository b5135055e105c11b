"""A worker's environment and command. Pure functions of the round.

The variables and their string forms are torchrun's (torch 2.13, `LocalElasticAgent._start_workers`), and six of ours:

* ELASTIC_AGENT_ROUND: number of the round, from 1.
* ELASTIC_AGENT_RESTARTS: rounds ended by a failure so far, over the whole job. TORCHELASTIC_RESTART_COUNT keeps
  torchrun's meaning: restarts charged to this node.
* ELASTIC_AGENT_LAST_ROUND_ENDED: why the last round ended, one sentence; empty in the first.
* ELASTIC_AGENT_NODE: identity of this node's agent within the job.
* ELASTIC_AGENT_READY_FILE: a file that the script creates when its start-up is over; empty without files.
* ELASTIC_AGENT_STEPS: where the worker library finds the page that it shares with the agent (`proto/steps.py`).

TORCHELASTIC_USE_AGENT_STORE is "True" as with torchrun: a store is served at MASTER_ADDR:MASTER_PORT, of which every
worker is a client; with `--worker-store rank0` it is "False", and the worker of rank 0 serves it there. Either way the
port is one of this round alone, so it never holds a key of an earlier round.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...proto.steps import VARIABLE as STEPS
from ...rendezvous.records import Member, Round
from ..errors import InternalError, UsageError
from ..spec import WorkerSpec

PER_WORKER = (
    *("LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
    *("TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    *("ELASTIC_AGENT_ROUND", "ELASTIC_AGENT_RESTARTS", "ELASTIC_AGENT_LAST_ROUND_ENDED", "ELASTIC_AGENT_NODE"),
    *("ELASTIC_AGENT_READY_FILE", STEPS),
)
"""All that `worker_environment` may set: only these differ between a worker and `spec.base_env`."""


def worker_environment(
    spec: WorkerSpec,
    round: Round,  # noqa: A002 - the word means a round of the rendezvous throughout this code
    member: Member,
    local_rank: int,
    restart_count: int,
    master_addr: str,
    master_port: int,
    error_file: str,
    steps: str = "",
) -> dict[str, str]:
    """The whole environment of one worker: `spec.base_env`, overridden by the round's variables.

    `restart_count`: restarts charged to this node so far; `error_file`: an absolute path, or empty where no files are
    written; `steps`: where this worker finds its page (`proto/steps.py`). Raises UsageError if `--virtual-local-rank`
    runs out of devices in CUDA_VISIBLE_DEVICES.
    """
    if not 0 <= local_rank < member.nproc:
        raise InternalError(f"local rank {local_rank} of a node with {member.nproc} workers; please report this")
    env = dict(spec.base_env)
    env.update(_identity(spec, round, member, local_rank))
    env["MASTER_ADDR"] = master_addr
    env["MASTER_PORT"] = str(master_port)
    env["TORCHELASTIC_RESTART_COUNT"] = str(restart_count)
    env["TORCHELASTIC_MAX_RESTARTS"] = str(spec.restarts.max_restarts)
    env["TORCHELASTIC_RUN_ID"] = spec.run_id
    env["TORCHELASTIC_USE_AGENT_STORE"] = str(spec.worker_store == "agent")
    env["TORCHELASTIC_ERROR_FILE"] = error_file
    env["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(_signal_name(number) for number in spec.signals)
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    env["ELASTIC_AGENT_ROUND"] = str(round.number)
    env["ELASTIC_AGENT_RESTARTS"] = str(round.restarts)
    env["ELASTIC_AGENT_LAST_ROUND_ENDED"] = round.ended.because if round.ended else ""
    env["ELASTIC_AGENT_NODE"] = member.node
    env["ELASTIC_AGENT_READY_FILE"] = ready_file(error_file)
    env[STEPS] = steps
    # The reason for the last round's end may come from another node; with a NUL in it, exec would fail.
    return {name: value.replace("\0", "") for name, value in env.items()}


def ready_file(error_file: str) -> str:
    """The file that a worker creates when its start-up is over: beside its error file; empty without files."""
    return f"{error_file.rpartition('/')[0]}/ready" if error_file else ""


def worker_argv(spec: WorkerSpec, local_rank: int) -> tuple[str, ...]:
    """The command of one worker: `${local_rank}` (or `$local_rank`) replaced in every argument but the program itself.

    As torch's `macros.substitute`: `string.Template.safe_substitute`, so `$$` becomes `$` and other names stay.
    """
    if not any("$" in argument for argument in spec.argv[1:]):
        return spec.argv
    from string import Template

    rest = (Template(argument).safe_substitute(local_rank=local_rank) for argument in spec.argv[1:])
    return (*spec.argv[:1], *rest)


def _identity(spec: WorkerSpec, round: Round, member: Member, local_rank: int) -> dict[str, str]:  # noqa: A002 - as above
    env = {
        "LOCAL_RANK": "0" if spec.virtual_local_rank else str(local_rank),
        "RANK": str(member.rank_offset + local_rank),
        "GROUP_RANK": str(member.group_rank),
        "ROLE_RANK": str(member.role_offset + local_rank),
        "ROLE_NAME": member.role,
        "LOCAL_WORLD_SIZE": str(member.nproc),
        "WORLD_SIZE": str(round.world_size),
        "GROUP_WORLD_SIZE": str(round.nodes),
        "ROLE_WORLD_SIZE": str(round.role_world_size(member.role)),
    }
    if spec.virtual_local_rank:
        env["CUDA_VISIBLE_DEVICES"] = _only_device(spec.base_env, local_rank)
    return env


def _only_device(base_env: Mapping[str, str], local_rank: int) -> str:
    """The one device of a worker in virtual mode: the entry at its local rank in the agent's list, or that number."""
    listed = base_env.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return str(local_rank)
    devices = listed.split(",")
    if local_rank >= len(devices):
        raise UsageError(
            f"--virtual-local-rank: local rank {local_rank} has no device in CUDA_VISIBLE_DEVICES={listed!r}, "
            f"which lists {len(devices)}; start at most that many workers"
        )
    return devices[local_rank].strip()


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        # A real-time signal between SIGRTMIN and SIGRTMAX has a number and no name.
        return str(number)
