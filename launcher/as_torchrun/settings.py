"""torch's `LaunchConfig` (torch 2.13, `torch.distributed.launcher.api`) as ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from ...agent.errors import UsageError
from ..config.arguments import read_variable
from ..config.config import LaunchConfig
from ..config.flags import FLAGS

TORCHS_TIMEOUT_S = 900
"""What torch puts into `rdzv_configs` as `timeout` if nobody has set it."""

_OWN_NAMES = {field.name for field in fields(LaunchConfig)}


def settings_of(config: Any, env: Mapping[str, str]) -> LaunchConfig:
    """`config` as ours, with our own flags from their PET_ variables in `env`, since torch's parser has no place for
    them. A LaunchConfig of ours is returned as it is.

    Raises UsageError for a field of a newer torch that is set and not known here."""
    if isinstance(config, LaunchConfig):
        return config
    given: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name in _OWN_NAMES:
            given[field.name] = value
        elif value != _default(field):
            raise UsageError(f"LaunchConfig has {field.name}={value!r}, which this version does not know; leave it out")
    configs = _unquoted(config.rdzv_configs)
    if config.rdzv_backend != "static" and configs.get("timeout") == TORCHS_TIMEOUT_S:
        del configs["timeout"]
    given["rdzv_configs"] = configs
    given["rdzv_timeout"] = -1  # torch has put it into rdzv_configs
    given["start_method"] = "spawn"  # how torch would start a function; each worker here is a new interpreter
    for name in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
        given[name] = given.get(name) or ()
    return LaunchConfig(**given, **own_settings(env))


def _unquoted(configs: Mapping[str, Any]) -> dict[str, Any]:
    """torch splits a --rdzv-conf within literal quotes too: the first key keeps one, and the last value the other."""
    kept = {key: value for key, value in configs.items() if value is not None}
    quote = next(iter(kept), "")[:1]
    if quote not in ("'", '"'):
        return kept
    return {
        key.removeprefix(quote): value.removesuffix(quote) if isinstance(value, str) else value
        for key, value in kept.items()
    }


def own_settings(env: Mapping[str, str]) -> dict[str, Any]:
    """Fields that torch's LaunchConfig does not have, from the PET_ variables in `env`. Raises UsageError."""
    return {
        flag.key: read_variable(flag, env[flag.variable])
        for flag in FLAGS
        if flag.ours and flag.variable in env and flag.key in _OWN_NAMES
    }


def _default(field: Field[Any]) -> object:
    return field.default_factory() if field.default_factory is not MISSING else field.default
