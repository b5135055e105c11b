"""A worker from its start to its end: made once a round, it carries out the program's calls one after the other."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
import torch.distributed as dist

from .. import made_with, pickled_values
from ..names import BATCH_SIZE, PARCEL, PASSES, READS, SHUTDOWN
from .build import build
from .call_agreement import CallAgreement, agree_on_trainer
from .calls import Calls
from .channel import Channel
from .ending import ending, of_the_user
from .passes import Part, Passes
from .places import Places, every_of, state_directory
from .record import Record
from .states import states_of
from .surroundings import Surroundings
from .wrapping import weigh


def serve(folder: str) -> None:
    """Serve calls until the program shuts the trainer down. An exception is reported to it, and ends this process."""
    channel = Channel(folder)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    with ending(channel, rank) as stage:
        program = pickled_values.read(folder, PARCEL)
        logging.getLogger("elastic_agent.worker").setLevel(program["log_level"])
        around = _surroundings(program, rank, size)
        if size > 1:
            dist.init_process_group(_backend(program, around))
        # Before creators get the config, whose lists and dicts they may change.
        kept = made_with.kept_of(program)
        agree_on_trainer(made_with.all_of(program))
        torch.manual_seed(program["seed"])
        with of_the_user():
            operator = build(around)
        record = Record(kept, program["checkpoint_dir"], program["lasts"])
        # The passes are made after the run that they capture for.
        later: list[Passes] = []
        run = Places(
            state_directory(folder, program),
            program["seed"],
            every_of(program),
            lambda: later[0].capture() if later else None,
            # The record first: whether this is the same training decides what else of a state can be taken.
            {"calls": record, **states_of(operator)},
        )
        passes = Passes(operator, around, run, record, channel)
        later.append(passes)
        if passes.uneven:
            weigh(operator._wrapped, around)
        agreeing = CallAgreement(channel, run.world, record, program)
        agreeing.greet()
        stage.building = False
        calls = Calls(folder, operator, around, run, record, passes, channel)
        _carry_out(agreeing, calls, run, record, channel, around.local_rank)
        run.finish()
        channel.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def _carry_out(
    agreeing: CallAgreement, calls: Calls, run: Places, record: Record, channel: Channel, local_rank: int
) -> None:
    """One call after the other, until the program shuts the trainer down."""

    def waits() -> None:
        run.attend(False)

    waits()
    while (call := agreeing.next(waits))["name"] != SHUTDOWN:
        run.attend(call["name"] in PASSES)
        value, body = calls.perform(call)
        if call["number"] < 0:
            channel.answer(call["number"], value, body)  # it was asked of this worker alone
            continue
        if isinstance(value, Part):
            record.finish_by_program(call["number"], call["name"], call["digest"])
            channel.part(call["number"], value.told)
            continue
        if call["name"] in READS:
            record.finish(call["number"], call["name"], call["digest"], None)
        else:
            value = record.finish(call["number"], call["name"], call["digest"], value)
        if calls.lasting:
            run.save_now()
        if local_rank == 0:
            channel.answer(call["number"], value, body)
    waits()


def _surroundings(program: dict[str, Any], rank: int, size: int) -> Surroundings:
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cpu")
    if program["use_gpu"]:
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    config = dict(program["config"])
    if BATCH_SIZE in config:
        config[BATCH_SIZE] = -(-config[BATCH_SIZE] // size)
    amp = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(program["amp_dtype"])
    return Surroundings(rank, local_rank, size, device, config, program, amp, program["use_tqdm"])


def _backend(program: dict[str, Any], around: Surroundings) -> str:
    if program["backend"] != "auto":
        return str(program["backend"])
    return "nccl" if around.device.type == "cuda" else "gloo"
