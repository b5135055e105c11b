"""`TorchTrainer`: distributed training as an object of a Python program."""

from __future__ import annotations

import base64
import inspect
import itertools
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..agent.errors import UsageError
from . import files, options, paths, pickled_values, plain
from .errors import WrongReturn
from .names import (
    BEFORE_PASS,
    HOOK,
    LOAD,
    MODEL,
    OPERATORS,
    PARCEL,
    SCHEDULER_STEP,
    SCHEDULERS,
    SHUTDOWN,
    STATE,
    TRAIN,
    VALIDATE,
    WORKERS,
    WRONG,
)
from .operator import TrainingOperator, check_steps
from .program import agreed_files
from .program.call_server import Answer, CallServer
from .program.folder import MEMORY, ROOM_BYTES, PrivateFolder
from .program.job import Job
from .program.modules import modules_of
from .program.parcels import Parcels
from .program.progress import Bar, drawable
from .program.resources import Room

KEEPS = ("exact", "auto", None)
log = logging.getLogger("elastic_agent")
_numbers = itertools.count(1)
"""The trainers of a program are told apart by their number, on every node."""


class TorchTrainer:
    """Trains with several workers, which stay up between calls and survive the loss of any of them.

    Use it as a context manager, or call `shutdown` at the end. Where the program ends otherwise, by an exception or
    `sys.exit`, workers first save what they have done, if `checkpoint_dir` or another node keeps it. The creators take
    `config`, and return: the model or several; data, a DataLoader or a Dataset, or training and validation data;
    optimizers, given the models too; a loss class, instance or function; schedulers, given the optimizers.

    initialization_hook: called in each worker when it starts. config: plain data for creators and operator;
    `config[BATCH_SIZE]` is the batch of all workers together, of which creators see a worker's part. num_workers: over
    all nodes, a multiple of the most. use_gpu: "auto": where there are some. backend: "auto": nccl with GPUs, else
    gloo. use_fp16, amp_dtype: mixed precision. use_tqdm: a progress bar where there is a terminal. add_dist_sampler:
    divide the data over the workers, to go on exactly after a failure; False: each gets all. parallel: "ddp", "fsdp"
    (FSDP2) or "none"; ddp_args: of DistributedDataParallel. scheduler_step_freq: "epoch", "batch" or "manual".
    checkpoint_dir: where state is kept on disk, to survive all nodes; without, it is in the memory of the nodes.
    save_every: {"seconds": S} or {"steps": N} between two states; default: by what one costs. max_retries: as `train`,
    for the start. resources: a function that says for how many workers this node has resources now; default: for one
    for each of its GPUs, with use_gpu, else for all. nnodes, rdzv_endpoint, rdzv_id: several nodes, each of which runs
    this program. preload: modules that workers are forked with, default torch and those of the creators; () for none.
    seed: of order, random numbers and weights. launch: further fields of LaunchConfig.
    """

    _call_server: CallServer | None
    _job: Job | None

    def __init__(
        self,
        *,
        model_creator: Callable[[dict[str, Any]], Any] | None = None,
        data_creator: Callable[[dict[str, Any]], Any] | None = None,
        optimizer_creator: Callable[[Any, dict[str, Any]], Any] | None = None,
        loss_creator: Any = None,
        scheduler_creator: Callable[[Any, dict[str, Any]], Any] | None = None,
        training_operator_cls: type[TrainingOperator] = TrainingOperator,
        initialization_hook: Callable[[], None] | None = None,
        config: Mapping[str, Any] | None = None,
        num_workers: int = 1,
        use_gpu: bool | str = "auto",
        backend: str = "auto",
        use_fp16: bool = False,
        amp_dtype: Any = None,
        apex_args: Any = None,
        use_tqdm: bool = False,
        add_dist_sampler: bool = True,
        parallel: str = "ddp",
        ddp_args: Mapping[str, Any] | None = None,
        scheduler_step_freq: str = "epoch",
        checkpoint_dir: str | os.PathLike[str] | None = None,
        save_every: Mapping[str, float] | None = None,
        max_retries: int = 3,
        resources: Callable[[], int] | None = None,
        nnodes: str = "1",
        rdzv_endpoint: str = "",
        rdzv_id: str = "",
        preload: Any = None,
        seed: int = 0,
        launch: Mapping[str, Any] | None = None,
    ) -> None:
        """Arguments: see `docs/trainer.md`, and `options`. Returns when all workers of this node are ready. Raises
        UsageError, WrongReturn, TrainingFailed, and the errors of the agents."""
        given = {name: value for name, value in locals().items() if name != "self"}
        settled = options.settled(given, number=next(_numbers))
        self._num_workers, self._max_retries = num_workers, max_retries
        self._config, self._parallel = settled.config, parallel
        self._nodes = settled.nodes[1]
        self._checkpoint_dir = settled.program["checkpoint_dir"]
        self._bar = Bar() if drawable(use_tqdm) else None
        self._replaying = self._closed = False
        self._call_server, self._job = None, None
        self._folder = PrivateFolder()
        try:
            self._start(settled)
        except BaseException:
            self.shutdown(force=True)
            raise

    def _start(self, settled: options.Settled) -> None:
        folder, program = self._folder.path, settled.program
        self._parcels = Parcels(folder)
        program |= {
            "on_disk": bool(self._checkpoint_dir) or not self._folder.in_memory,
            "use_tqdm": self._bar is not None,
            "log_level": log.getEffectiveLevel(),
        }
        pickled_values.write(folder, PARCEL, "what the trainer was made with", program)
        if settled.hook is not None:
            pickled_values.write(folder, HOOK, "initialization_hook", settled.hook)
        given = [program[name] for name in program if name.endswith("_creator")]
        paths.write(folder, modules_of([program["operator_cls"], *(each for each in given if each is not None)]))
        self._call_server = CallServer(folder)
        if self._bar is not None:
            self._call_server.on_progress = self._bar.show
        room = Room(settled.workers_here, settled.resources)
        config = settled.launch(folder, room.take if room.changes else room.share)
        self._job = Job(config, self._call_server, room, self._max_retries, settled.endpoints, program["lasts"])
        self._call_server.wait_ready()
        self._replaying = self._call_server.records > 0

    @classmethod
    def as_trainable(
        cls,
        *,
        override_tune_step: Callable[[TorchTrainer, dict[str, Any]], dict[str, Any]] | None = None,
        **arguments: Any,
    ) -> type:
        """A class for Ray Tune, whose trials make a trainer with these arguments, and the trial's configuration laid
        over `config`. A step is a `train()`, and a `validate()` where there is data for it, or
        `override_tune_step(trainer, info)`. Needs ray."""
        from .tune import as_trainable

        return as_trainable(cls, override_tune_step, arguments)

    # -- training ------------------------------------------------------------------------------------------------------

    def train(
        self,
        num_steps: int | None = None,
        *,
        max_retries: int = 3,
        checkpoint: str | None = "exact",
        profile: bool = False,
        reduce_results: bool = True,
        info: Mapping[str, Any] | None = None,
        autoscale: bool = False,
    ) -> Any:
        """One pass over the training data, or `num_steps` batches of one. Returns means over the samples of all
        workers: `num_samples`, `epoch`, `batch_count`, `train_loss`, `last_train_loss`, and what the operator returns;
        a list with a dict for each worker with reduce_results=False.

        max_retries: failures of workers that are answered with a restart, at the next batch; the loss of a node, or
        another one, costs none. autoscale: look for resources again before the pass, and train with as many workers,
        up to `num_workers`, as there are resources for. checkpoint: "exact"; "auto": the state from before the pass is
        also kept in a file, `before_pass`; None: nothing may be kept on disk. profile: adds seconds by stage. info: for
        the operator.

        Raises TrainingFailed, WrongReturn, Diverged, and the errors of the agents.
        """
        if checkpoint not in KEEPS:
            raise UsageError(f"checkpoint={checkpoint!r}: it is 'exact', 'auto' or None")
        if checkpoint is None and self._checkpoint_dir:
            raise UsageError(
                "checkpoint=None keeps nothing on disk, and this trainer has a checkpoint_dir; leave one of them out"
            )
        if checkpoint is None and not self._folder.in_memory:
            raise UsageError(
                f"checkpoint=None keeps the state in memory alone, and {MEMORY} had less than {ROOM_BYTES >> 20} MiB "
                "free when the trainer was made; free some, or leave checkpoint=None out"
            )
        return self._pass(TRAIN, num_steps, max_retries, profile, reduce_results, info, checkpoint, autoscale)

    def validate(
        self,
        num_steps: int | None = None,
        *,
        max_retries: int = 3,
        profile: bool = False,
        reduce_results: bool = True,
        info: Mapping[str, Any] | None = None,
    ) -> Any:
        """One pass over the validation data, as `train`: `num_samples`, `epoch`, `batch_count`, `val_loss`, and
        `val_accuracy` for a classification."""
        return self._pass(VALIDATE, num_steps, max_retries, profile, reduce_results, info, None)

    def update_scheduler(self, metric: float) -> None:
        """A step of all schedulers, for `scheduler_step_freq="manual"`; ReduceLROnPlateau is given the metric."""
        self._call(SCHEDULERS, {"metric": options.checked_metric(metric)})

    def apply_all_workers(self, function: Callable[[], Any]) -> list[Any]:
        """Call a function in every worker; returns what it gave, plain data or tensors, by rank. Raises WrongReturn
        where that is something else on one of them, and UsageError where it cannot be called so."""
        options.checked_function(function, options.NOTHING)
        return self._applied(WORKERS, function)

    def apply_all_operators(self, function: Callable[[TrainingOperator], Any]) -> list[Any]:
        """Call a function with every worker's operator; returns and raises as `apply_all_workers`."""
        options.checked_function(function, options.THE_OPERATOR)
        return self._applied(OPERATORS, function)

    # -- state ---------------------------------------------------------------------------------------------------------

    def get_model(self) -> Any:
        """The model, or a list of several: copies on the CPU, out of DDP, in this program."""
        models = pickled_values.take(self._folder.path, str(self._read(MODEL).right().value))
        return models[0] if len(models) == 1 else models

    def state_dict(self) -> dict[str, Any]:
        """The state of everything, with tensors on the CPU."""
        state: dict[str, Any] = plain.from_bytes(self._read(STATE).body)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `state_dict`, of a trainer with any number of workers. Raises WrongReturn where it is
        of other models, or no plain data and tensors; on one node without checkpoint_dir the workers stay."""
        self._check_open()
        options.checked_mapping("the state", state, named=False)
        agreed_files.take(self._call(LOAD, {}, self._parcels.keep(plain.loadable(dict(state)))))

    def save(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """Write the state to a file on this node, whole or not at all; plain torch.load reads it too. Returns the path.
        Raises OSError where that cannot be, on all nodes where it is so on one; the files from before stay then."""
        self._check_open()
        if self._nodes == 1:
            files.save(path, {"state": self.state_dict()})
        elif not agreed_files.save(path, self._state_to_save(), self._parcels.keep, self._call):
            log.warning("no file is at %s: this save was done before this node took part, or began again", path)
        return path

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file of `save`, which one of several nodes must have; the first that has it counts. Raises
        CheckpointDamaged, WrongState, OSError, on every node the same; then nothing is changed."""
        self._check_open()
        if self._nodes == 1:
            self.load_state_dict(files.load(path)["state"])
            return
        agreed_files.load(path, self._parcels.keep, self._call)

    @property
    def before_pass(self) -> str:
        """Path of the file with the state from before the last pass that was made with checkpoint="auto": in
        `checkpoint_dir`, or else in a directory that `shutdown` removes."""
        return os.path.join(self._checkpoint_dir or self._folder.path, BEFORE_PASS)

    # -- the trainer itself --------------------------------------------------------------------------------------------

    @property
    def replaying(self) -> bool:
        """Whether the last call was not made but its recorded result returned: its side effects in this program may
        have happened in a former life of it. Before the first call: whether there are such results."""
        return self._replaying

    @property
    def num_workers(self) -> int:
        """Workers of all nodes now; at most those that were asked for."""
        return self._call_server.world_size if self._call_server is not None else 0

    @property
    def config(self) -> dict[str, Any]:
        """A copy of the configuration, as it was given."""
        return dict(self._config)

    def shutdown(self, force: bool = False) -> None:
        """End the workers, and wait for their end; with force, at once. May be called again."""
        if self._closed or not self._folder.ours:
            return  # in a child process that the program has forked: its end is not the trainer's
        self._closed = True
        job, call_server = self._job, self._call_server
        try:
            if job is not None and call_server is not None:
                # Workers that have done more calls than this program makes will not ask for its last one.
                behind = call_server.records > call_server.last
                if not (force or behind) and job.error is None and job.running:
                    call_server.make(SHUTDOWN, {}, plain.digest(SHUTDOWN))
                    job.wait()
                else:
                    job.stop(force)
        finally:
            if call_server is not None:
                call_server.close()
            if self._bar is not None:
                self._bar.close()
            self._folder.remove()

    def __enter__(self) -> TorchTrainer:  # noqa: PYI034 - Self is newer than Python 3.10
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and self._job is not None:
            self._job.leave()
        self.shutdown(force=kind is not None)

    def __repr__(self) -> str:
        if self._closed:
            return f"<TorchTrainer of {self._num_workers} workers, shut down>"
        call_server = self._call_server
        done = call_server.last if call_server is not None else 0
        return f"<TorchTrainer, {self.num_workers} of {self._num_workers} workers, {self._parallel}, {done} calls>"

    # -- inside --------------------------------------------------------------------------------------------------------

    def _pass(
        self,
        name: str,
        num_steps: int | None,
        max_retries: int,
        profile: bool,
        reduce_results: bool,
        info: Mapping[str, Any] | None,
        checkpoint: str | None,
        autoscale: bool = False,
    ) -> Any:
        if num_steps is not None:
            options.checked_number("num_steps", num_steps, 1)
        retries = options.checked_number("max_retries", max_retries, 0)
        told = options.checked_mapping("info", info, named=False)
        plain.check(told, "info")
        if SCHEDULER_STEP in told:
            check_steps(told[SCHEDULER_STEP])
        args: dict[str, Any] = {"num_steps": num_steps, "profile": bool(profile)}
        args |= {"reduce_results": bool(reduce_results), "info": plain.packed(told)}
        args |= {"checkpoint": checkpoint, "max_retries": retries, "autoscale": bool(autoscale)}
        try:
            return self._call(name, args).value
        finally:
            if self._bar is not None:
                self._bar.close()

    def _applied(self, name: str, function: Callable[..., Any]) -> list[Any]:
        self._check_open()
        parcel = self._parcels.of(function)
        title = getattr(function, "__qualname__", type(function).__name__)
        given = self._call(name, {"function": title, "code": plain.code_digest(function)}, parcel).value
        for rank, each in enumerate(given):
            if WRONG in each:
                raise WrongReturn(f"{each[WRONG]} (rank {rank})")
        return [
            each["plain"] if "plain" in each else plain.from_bytes(base64.b64decode(each["bytes"])) for each in given
        ]

    def _state_to_save(self) -> bytes:
        """Empty where the next call is done already."""
        call_server, _ = self._check_open()
        if self._parallel == "fsdp":
            return self._call(STATE, {}).body
        return b"" if call_server.records > call_server.last else call_server.read(STATE).body

    def _call(self, name: str, args: dict[str, Any], parcel: str = "", refused: str = "") -> Answer:
        call_server, job = self._check_open()
        job.allow(args.get("max_retries", self._max_retries))
        answer = call_server.wait(call_server.make(name, args, plain.digest(name, args), parcel, refused))
        self._replaying = answer.recorded
        self._parcels.answered(name, parcel)
        return answer.right()

    def _read(self, name: str) -> Answer:
        call_server, _ = self._check_open()
        if self._parallel == "fsdp":
            answer = self._call(name, {})
            if answer.recorded:
                why = f"an earlier start called {name}() of this sharded model, whose result is not recorded"
                raise UsageError(f"{why}; begin anew in another checkpoint_dir")
            return answer
        return call_server.read(name)

    def _check_open(self) -> tuple[CallServer, Job]:
        call_server, job = self._call_server, self._job
        if not self._closed and call_server is not None and job is not None and self._folder.ours:
            return call_server, job
        caller = next(each.function for each in inspect.stack() if not each.function.startswith("_"))
        over = "after shutdown(): the trainer has no workers any more; make another one"
        forked = "in a process that was forked from the trainer's, which has the workers; make another trainer here"
        raise UsageError(f"{caller}() {over if self._folder.ours else forked}")
