"""`train` and `validate` of one worker: one pass each, entered where a lost round left it."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import WrongReturn
from ..meters import merged, together
from ..names import SCHEDULER_STEP, TRAIN
from ..operator import TrainingOperator, check_scheduled, check_steps
from ..plain import numbers, unpacked
from .build import sync_buffers
from .channel import Channel
from .places import Batches, Places
from .record import Record
from .surroundings import Surroundings
from .wrapping import to_training_mode


@dataclass(frozen=True)
class Part:
    """One worker's part of what a pass gives."""

    told: bytes
    """As JSON; see `merged`."""


class Passes:
    """Made once a round."""

    def __init__(
        self, operator: TrainingOperator, around: Surroundings, run: Places, record: Record, channel: Channel
    ) -> None:
        """Raises NotResumable, WrongState where a loader cannot be resumed as it is."""
        self._operator, self._around, self._run, self._record = operator, around, run, record
        self._channel = channel
        self._several = int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1
        self._data = {name: Batches(run, name, loader, around) for name, loader in around.loaders.items()}
        operator._loaders = {name: data.exact or around.loaders[name] for name, data in self._data.items()}

    @property
    def uneven(self) -> bool:
        return "train" in self._data and self._data["train"].uneven

    def train(self, number: int, args: dict[str, Any]) -> Any:
        """One pass over the training data; what the call returns, or this worker's part of it."""
        operator, data = self._operator, self._of("train")
        for model in operator._wrapped:
            to_training_mode(model)
        info = unpacked(args["info"])
        info[SCHEDULER_STEP] = steps = self._steps(info)
        check_scheduled(operator, steps)
        made = self._pass(number, data, args, info)
        if steps == "epoch":
            for scheduler in operator._schedulers:
                scheduler.step()
        operator.epoch += 1
        return self._finished(number, made, args)

    def validate(self, number: int, args: dict[str, Any]) -> Any:
        """One pass over the validation data; what the call returns, or this worker's part of it."""
        operator, data = self._operator, self._of("validation")
        sync_buffers(operator._models)
        for model in operator._wrapped:
            model.eval()
        with torch.no_grad():
            made = self._pass(number, data, args, unpacked(args["info"]))
        return self._finished(number, made, args)

    def unfit(self, name: str, args: dict[str, Any]) -> str:
        """Why a pass of this name cannot begin; empty: it can."""
        try:
            self._of("train" if name == TRAIN else "validation")
            if name == TRAIN:
                check_scheduled(self._operator, self._steps(unpacked(args["info"])))
        except WrongReturn as error:
            return str(error)
        return ""

    def _steps(self, info: dict[str, Any]) -> str:
        """When schedulers step in this pass."""
        return check_steps(info.get(SCHEDULER_STEP, self._around.program[SCHEDULER_STEP]))

    def go_on(self) -> None:
        """A state was loaded: the next training pass has the order that it would have had where the state is from,
        unless that order was used here before."""
        if "train" in self._data:
            self._data["train"].go_to(self._operator.epoch)

    def capture(self) -> None:
        """Collective, before a checkpoint: what all workers' meters hold so far."""
        if self._record.going is not None:
            parts = self._run.world.gather(self._operator._meters.to_json())
            self._record.going["meters"] = together(parts)

    def _of(self, name: str) -> Batches:
        if name not in self._data:
            other = "validation" if name == "validation" else "training"
            raise WrongReturn(
                f"there is no {other} data: let data_creator return "
                f"{'training and validation data' if name == 'validation' else 'it'}, or register_data(...) in setup()"
            )
        return self._data[name]

    def _pass(self, number: int, data: Batches, args: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
        operator, record, meters = self._operator, self._record, self._operator._meters
        going = record.going if record.going is not None and record.going["number"] == number else None
        if going is None:
            data.begin()
            going = {"number": number, "epoch": data.epoch, "meters": None}
        meters.restore(going["meters"], first=self._around.rank == 0)
        record.going = going
        operator.timers.reset(args["profile"])
        info |= {"epoch_idx": operator.epoch, "batch_idx": meters.batches, "num_steps": args["num_steps"]}
        begun = meters.batches
        trains = data.name == "train"
        batches = self._batches(data, going["epoch"], args["num_steps"], trains)
        returned = (operator.train_epoch if trains else operator.validate)(batches, info)
        batches.close()
        method = "train_epoch" if trains else "validate"
        if not isinstance(returned, dict):
            raise WrongReturn(f"{method} returned a {type(returned).__name__}, and must return a dict of numbers")
        if self._run.stopping:
            self._run.leave()
        if not meters.batches and begun == 0:
            raise WrongReturn(
                f"the {'training' if trains else 'validation'} data gave no batch: {method} asked for none, or the "
                "loader is empty"
            )
        return numbers(returned)  # type: ignore[no-any-return]

    def _batches(self, data: Batches, epoch: int, num_steps: int | None, trains: bool) -> Generator[Any, None, None]:
        meters, run, steps = self._operator._meters, self._run, num_steps or data.steps()
        shows = self._around.use_tqdm and self._around.rank == 0
        if num_steps is not None and meters.batches >= num_steps:
            return
        with self._operator.timers.record("pass"):
            for batch in data.batches(epoch, meters.batches):
                asked = False
                try:
                    yield batch
                    asked = True
                finally:
                    # Also where the loop was left: what it was given last, it has used.
                    self._over(data, trains)
                    if not asked and data.exact is not None:
                        run.boundary(may_save=False)
                run.boundary(evaluated=0 if trains else meters.batches)
                if shows:
                    self._show(data, steps)
                if run.stopping or meters.batches == num_steps:
                    return

    def _over(self, data: Batches, trains: bool) -> None:
        """A batch is over."""
        self._operator._meters.batches += 1
        data.over()
        if trains:
            self._operator.global_step += 1
            self._run.step()

    def _show(self, data: Batches, steps: int | None) -> None:
        meters = self._operator._meters
        last = {name: total / count for name, (total, count) in meters.last.items() if count}
        self._channel.progress({"pass": data.name, "batch": meters.batches, "of": steps, "last": last})

    def _finished(self, number: int, returned: dict[str, Any], args: dict[str, Any]) -> Any:
        """What the call gives: one dict, or one of each worker; or this worker's part, which the program adds up with
        the others where all are on its node, so that no worker waits for another."""
        part = self._part(returned, args)
        try:
            told = json.dumps(part).encode()
        except TypeError as error:
            raise WrongReturn(
                f"a pass returned what is no plain data: {error}; return numbers, texts, and lists and dicts of them"
            ) from error
        if self._several:
            return merged([json.loads(part) for part in self._run.world.gather_bytes(told)])
        if number in self._record.known:
            return None  # what it gave the first time stands
        if part.get("returned"):
            merged([part])  # raises here what would be wrong there
        return Part(told)

    def _part(self, returned: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
        meters = self._operator._meters
        common: dict[str, Any] = {"epoch": self._operator.epoch, "batch_count": meters.batches}
        if args["profile"]:
            common["profile"] = self._operator.timers.stats()
        if not args["reduce_results"]:
            return {"each": {**returned, **common}}
        own = meters.summary()
        others = {name: value for name, value in returned.items() if own.get(name) != value}
        return {"meters": meters.to_json(), "returned": others, "common": common}
