"""What a worker does for each call of the program."""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from ...agent.errors import UsageError
from .. import pickled_values
from ..errors import Diverged, StateLost, WrongReturn
from ..files import put_in_place, save
from ..names import (
    BEFORE_PASS,
    LOAD,
    MODEL,
    OPERATORS,
    PASSES,
    SAVE,
    SCHEDULERS,
    STATE,
    TRAIN,
    VALIDATE,
    WORKERS,
    WRONG,
)
from ..operator import TrainingOperator
from ..plain import from_bytes, stays, to_bytes, without_numpy
from .channel import Channel
from .passes import Passes
from .places import Places
from .record import Record
from .states import load_whole, unfit, whole
from .surroundings import Surroundings
from .wrapping import plain_copy

_NOT_ALLOWED = re.compile(r"Unsupported global: GLOBAL (\S+)")


class Calls:
    """Made once a round."""

    def __init__(
        self,
        folder: str,
        operator: TrainingOperator,
        around: Surroundings,
        run: Places,
        record: Record,
        passes: Passes,
        channel: Channel,
    ) -> None:
        self._channel = channel
        self._folder, self._operator, self._around, self._run = folder, operator, around, run
        self._record, self._passes = record, passes
        self.lasting = False
        """Whether the call that was performed last must not be done again: its state is saved before it is answered."""

    def perform(self, call: dict[str, Any]) -> tuple[Any, bytes]:
        """Do it, together with all other workers. Gives what is answered: plain data, and bytes."""
        name, number, args = call["name"], call["number"], call["args"]
        self.lasting = name in (LOAD, WORKERS, OPERATORS, SCHEDULERS)
        if name in PASSES and (why := self._passes.unfit(name, args)):
            return self._wrong(why), b""
        if name == TRAIN:
            if args["checkpoint"] == "auto" and not self._entered(number):
                self._keep()
            if args["checkpoint"] is None:
                self._remember(call)
            if args["autoscale"] and not self._entered(number):
                self._rescale()
            return self._passes.train(number, args), b""
        if name == VALIDATE:
            return self._passes.validate(number, args), b""
        if name == STATE:
            state = whole(self._operator)
            return None, to_bytes(state) if self._around.local_rank == 0 else b""
        if name == SAVE:
            return self._saved(call["parcel"], call["refused"]), b""
        if name == LOAD:
            return self._load(call["parcel"], call["refused"]), b""
        if name == MODEL:
            return self._model(number), b""
        if name == SCHEDULERS:
            self._step_schedulers(args["metric"])
            return None, b""
        return self._applied(name, call["parcel"]), b""

    def _wrong(self, text: str) -> dict[str, str]:
        """An error of this call alone: memory has what was trained, and to end the workers would lose it. Raises
        WrongReturn where a state can be gone on from; there the answer would be in the record of calls, for the program
        that was mended, too."""
        if self._around.program["lasts"]:
            raise WrongReturn(text)
        return {WRONG: text}

    def _step_schedulers(self, metric: float) -> None:
        for scheduler in self._operator._schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(metric)
            else:
                scheduler.step()

    def _entered(self, number: int) -> bool:
        return self._record.going is not None and self._record.going["number"] == number

    def _keep(self) -> None:
        """The state from before a pass, for the program or its user to go back to."""
        state = whole(self._operator)
        if self._around.local_rank == 0:
            directory = self._around.program["checkpoint_dir"] or self._folder
            Path(directory).mkdir(parents=True, exist_ok=True)
            save(os.path.join(directory, BEFORE_PASS), {"state": state})

    def _remember(self, call: dict[str, Any]) -> None:
        """Memory is the only place that has the state of this pass. Raises StateLost where it was there, and is no
        more."""
        number, run = call["number"], self._run
        had = call["kept"] or number in self._record.known
        if any(run.world.gather(had)) and not run.resumed:
            raise StateLost(
                f"the state of call {number}, {call['name']}(checkpoint=None), is lost: it was in memory only, and no "
                "worker that had it is left; begin anew, with checkpoint_dir= and without checkpoint=None"
            )
        if not run.kept:
            run.save_now()
        self._channel.kept(number)

    def _rescale(self) -> None:
        """Let every node's program look for resources; where there are others, the next round goes on with the call."""
        # All take part in boundaries again before anybody asks: the agent gives up what it finds somebody away from.
        self._run.world.gather(None)
        asked = self._around.local_rank == 0 and self._channel.look()
        if any(self._run.world.gather(asked)):
            self._run.await_resize()

    def _saved(self, parcel: str, refused: str) -> str | None:
        """Each node's program has written its file aside: put all in their places, or none. Why, where a node could
        not."""
        world, node = self._run.world, f"(node {os.environ.get('GROUP_RANK', '0')})"
        if why := next(filter(None, world.gather(f"{refused} {node}" if refused else "")), ""):
            return str(why)
        problem = ""
        # Where this call is done again, the file may be in its place, and then the parcel is gone.
        if parcel and self._around.local_rank == 0 and os.path.exists(os.path.join(self._folder, parcel)):
            aside, target = json.loads(Path(self._folder, parcel).read_bytes())
            try:
                if os.path.exists(aside):
                    put_in_place(aside, target)
            except OSError as error:
                problem = f"{error.errno}: {error.strerror} {node}"
        return next(filter(None, world.gather(problem)), None)

    def _load(self, parcel: str, refused: str) -> str | dict[str, str] | None:
        """Take the state that this node has; with several nodes, that of the first one that has any, on all. Where a
        node's program could not read its file, none has one, or it is of something else, why: nothing is changed then.
        Raises Diverged where nodes have states of different places."""
        world = self._run.world
        data = Path(self._folder, parcel).read_bytes() if parcel else b""
        if int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1:
            node = os.environ.get("GROUP_RANK", "0")
            outline = _outline(from_bytes(data)) if parcel else ""
            given = world.gather([outline, f"{refused} (node {node})" if refused else "", f"node {node}"])
            if why := next((why for _, why, _ in given if why), ""):
                return why
            having = [rank for rank, (outline, *_) in enumerate(given) if outline]
            if not having:
                return "FileNotFoundError: no node has the file to load: put it on one of them"
            first, *others = (given[rank] for rank in having)
            for other in others:
                if other[0] != first[0]:
                    raise Diverged(
                        f"what is to be loaded is {first[0]} on {first[2]} and {other[0]} on {other[2]}: give every "
                        "node the same, or one of them"
                    )
            data = world.broadcast_bytes(data, having[0])
        state = from_bytes(data)
        if why := unfit(self._operator, state):
            return self._wrong(why)
        load_whole(self._operator, state)
        self._passes.go_on()
        return None

    def _model(self, number: int) -> str | dict[str, str] | None:
        """The models, out of DDP and on the CPU, in a file for the program."""
        state = whole(self._operator)
        if self._around.local_rank:
            return None
        if self._around.program["parallel"] == "fsdp":
            made = self._around.program["model_creator"](dict(self._around.config))
            models = list(made) if isinstance(made, (list, tuple)) else [made]
            for at, model in enumerate(models):
                model.load_state_dict(state[f"model{at}"])
        else:
            try:
                models = [plain_copy(model) for model in self._operator._models]
            except Exception as error:  # noqa: BLE001 - a copy runs the user's own code
                return self._wrong(f"the model cannot be copied: {type(error).__name__}: {error}; use state_dict()")
        for model in models:
            model.zero_grad(set_to_none=True)
        name = f"model-{number}"
        try:
            pickled_values.write(self._folder, name, "the model", models)
        except UsageError as error:
            return self._wrong(str(error).replace("to the workers", "to the program"))
        return name

    def _applied(self, name: str, parcel: str) -> list[Any]:
        """What a function of the program gave on each worker, by rank; or what is wrong with it: that is an error of
        the program's, and no reason to lose what was trained."""
        function = pickled_values.read(self._folder, parcel)
        value = without_numpy(function() if name == WORKERS else function(self._operator))
        try:
            told = {"plain": value} if stays(value) else {"bytes": base64.b64encode(_checked(value)).decode()}
        except WrongReturn as error:
            told = self._wrong(str(error))
        made: list[Any] = self._run.world.gather(told)
        return made


def _outline(state: dict[str, Any]) -> str:
    """Of which training, and of which place in it, a state is. Not its numbers: nodes may differ in buffers, and in
    what their operators keep."""
    own = state.get("operator")
    epoch, batches = (own.get(name) for name in ("epoch", "global_step")) if isinstance(own, dict) else (None, None)
    return f"a state after {epoch} passes and {batches} batches of {', '.join(sorted(map(str, state)))}"


def _checked(value: Any) -> bytes:
    """As bytes that a program reads without running code. Raises WrongReturn where it cannot be."""
    try:
        data = to_bytes(value)
        from_bytes(data)
    except Exception as error:
        # torch's own text tells how to load a file of somebody else's.
        named = _NOT_ALLOWED.search(str(error))
        why = f"it has {named.group(1)} in it" if named else f"{type(error).__name__}: {str(error).splitlines()[0]}"
        raise WrongReturn(
            f"the function returned a {type(value).__name__}, and must return plain data or tensors: {why}"
        ) from error
    return data
