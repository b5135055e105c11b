"""Fields and flags of torchrun that hold objects of torch: `LogsSpecs`, `NumaOptions`, handlers of events.

torch (2.13) is imported only where such an object has to be made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ...agent.errors import UsageError
from ...agent.spec import NUMA_MODES
from ...proto.frozen import replace
from .values import LONGEST_S

LOGS_SPECS_GROUP = "torchrun.logs_specs"
EVENT_HANDLERS = ("null", "console", "dynamic_rendezvous")
"""Those that torch brings; `dynamic_rendezvous` writes nothing."""
_DEFAULT_LOGS = ("torch.distributed.elastic.multiprocessing.api", "DefaultLogsSpecs")


def spelled_out(config: Any) -> Any:
    """A `LaunchConfig`, torch's own `DefaultLogsSpecs` and `rdzv_timeout` in our fields. Raises UsageError."""
    _check_event_handler(config.event_log_handler)
    if config.rdzv_timeout != -1:
        config = replace(config, rdzv_configs={**config.rdzv_configs, "timeout": config.rdzv_timeout}, rdzv_timeout=-1)
    specs: Any = config.logs_specs
    if specs is None or reify_of(specs) is not None:
        return config
    return replace(
        config,
        logs_specs=None,
        log_dir=specs._root_log_dir,
        redirects=_plain(specs._redirects),
        tee=_plain(specs._tee),
        local_ranks_filter=specs._local_ranks_filter or "",
    )


def reify_of(specs: Any) -> Callable[[dict[int, dict[str, str]]], Any] | None:
    """The method that decides where a round's logs go, of `LogsSpecs` that are not torch's own. Raises UsageError for
    an object that has none."""
    if specs is None or (type(specs).__module__, type(specs).__name__) == _DEFAULT_LOGS:
        return None
    reify: Callable[[dict[int, dict[str, str]]], Any] | None = getattr(specs, "reify", None)
    if not callable(reify):
        raise UsageError(f"logs_specs is {specs!r}, which has no reify(); give an object of torch's LogsSpecs")
    return reify


def load_logs_specs(name: str, log_dir: str | None, redirects: str, tee: str, ranks: frozenset[int]) -> Any:
    """An object of the class that the entry point `name` of `torchrun.logs_specs` loads, made as torchrun makes it.
    Raises UsageError if there is none."""
    from importlib import metadata

    found = list(metadata.entry_points().select(group=LOGS_SPECS_GROUP, name=name))
    if not found:
        raise UsageError(f"--logs-specs is {name!r}, but no package has an entry point {LOGS_SPECS_GROUP} of that name")
    std = import_module("torch.distributed.elastic.multiprocessing").Std
    kind = found[0].load()
    return kind(
        log_dir=log_dir,
        redirects=std.from_str(redirects),
        tee=std.from_str(tee),
        local_ranks_filter=set(ranks) or None,
    )


def with_timer(base_env: dict[str, str]) -> dict[str, str]:
    """The workers' environment, with a name for the file timer's pipe in it if that is on and none is given."""
    if base_env.get("TORCHELASTIC_ENABLE_FILE_TIMER") == "1" and not base_env.get("TORCHELASTIC_TIMER_FILE"):
        folder = base_env.get("TMPDIR") or "/tmp"  # noqa: S108 - the name cannot be guessed
        base_env["TORCHELASTIC_TIMER_FILE"] = os.path.join(folder, f"watchdog_timer_{os.urandom(16).hex()}")
    return base_env


def stuck_s(env: Mapping[str, str]) -> float:
    """TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT in seconds. As in torch, 0 and what is no number turn it off."""
    try:
        limit_s = float(env.get("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT") or 0)
    except ValueError:
        return 0.0
    return limit_s if 0 < limit_s < LONGEST_S else 0.0


def numa(options: Any) -> tuple[str, bool]:
    """The mode of binding, empty for none, and whether a worker may start unbound. Raises UsageError."""
    if not options:
        return "", False
    mode = getattr(options, "affinity_mode", options)
    mode = str(getattr(mode, "value", mode))
    if mode not in NUMA_MODES:
        raise UsageError(f"numa_options is {mode!r}; give one of {', '.join(NUMA_MODES)}")
    return mode, bool(getattr(options, "should_fall_back_if_binding_fails", False))


def _check_event_handler(name: str) -> None:
    registered = getattr(sys.modules.get("torch.distributed.elastic.events.handlers"), "_log_handlers", EVENT_HANDLERS)
    if name not in registered:
        raise UsageError(
            f"--event-log-handler is {name!r}, which is not registered in this process; give one of "
            f"{', '.join(registered)}, or launch from a program that registers it"
        )


def _plain(streams: Any) -> int | dict[int, int]:
    """torch's `Std`, or its mapping of them, as numbers."""
    if isinstance(streams, dict):
        return {rank: int(bits) for rank, bits in streams.items()}
    return int(streams)
