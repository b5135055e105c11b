"""Words that programs, operators and workers share."""

from __future__ import annotations

BATCH_SIZE = "*batch_size"
"""Key of `config`: samples of a step over all workers. RaySGD's name."""
NUM_SAMPLES = "num_samples"
"""Key of what `train_batch` and `validate_batch` return: how many samples the other values are means over."""
SCHEDULER_STEP = "scheduler_step_freq"
"""Key of `info`: when schedulers step, one of `STEPS`."""
STEPS = ("epoch", "batch", "manual")
FOLDER = "ELASTIC_AGENT_TRAINER"
"""The variable that names the program's private directory to a worker."""
SOCKET = "calls"
"""Name of the program's socket in that directory."""
PARCEL = "program"
"""Name of the file there that has the creators and what else the workers are made of."""
PATHS = "paths.json"
"""Name of the file there that has the program's `sys.path`, and the modules that its creators are from."""
HOOK = "hook"
"""Name of the file there that has `initialization_hook`: it is read before torch is touched."""
BEFORE_PASS = "before-pass.pt"
"""File of the state from before the last pass, where that is kept."""
TRAIN, VALIDATE, STATE, SAVE, LOAD, MODEL, WORKERS, OPERATORS, SCHEDULERS, SHUTDOWN = (
    "train",
    "validate",
    "state_dict",
    "save",
    "load_state_dict",
    "get_model",
    "apply_all_workers",
    "apply_all_operators",
    "update_scheduler",
    "shutdown",
)
"""Names of calls."""
WRONG = "*wrong"
"""Key of what a call gives that can do nothing with what it was given: why, for the program alone to raise."""
PASSES = frozenset({TRAIN, VALIDATE})
"""Calls that are passes over data."""
READS = frozenset({STATE, MODEL})
"""Calls that change nothing: what they gave is not recorded."""
FORBIDDEN = 93
"""Exit code of a worker that says that a restart would end the same way; `agent/exit_status.py` has it."""
