"""A command line without flags, what a flag changes in it, and with which line it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from elastic_agent.agent.errors import UsageError
from elastic_agent.launcher.cli import parse
from elastic_agent.launcher.config.config import LaunchConfig

BARE = LaunchConfig(
    max_restarts=0, rdzv_backend="static", redirects="0", tee="0",
    log_rotate="", local_ranks_filter=frozenset(), restart_backoff=(0.0, 60.0), no_restart_codes=frozenset({93}),
)  # fmt: skip
"""The configuration of a command line without flags."""


def changed(config: LaunchConfig) -> dict[str, Any]:
    """The fields in which `config` differs from `BARE`."""
    return {name: getattr(config, name) for name in BARE.__slots__ if getattr(config, name) != getattr(BARE, name)}


def refusal(args: Sequence[str], env: dict[str, str] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        parse(args, env or {})
    message = str(caught.value)
    assert "\n" not in message
    return message
