"""`elastic_launch` and `launch_agent` with torch's shapes (torch 2.13, `torch.distributed.launcher.api`), on our agent.

Whoever launches through torch calls one of these two in the end: torchrun, `torch.distributed.launch`, accelerate,
Lightning Fabric, notebooks. They find ours where torch's were (`place.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ...agent.errors import AgentError
from ..api import NodeAgent, Program
from ..reporting.console import Console
from ..reporting.printing import printing_of
from ..reporting.summary import write_summary
from .outcome import as_torch_error
from .settings import settings_of

Entrypoint = Callable[..., Any] | str | None


class elastic_launch:  # noqa: N801 - torch's name
    """`elastic_launch(config, entrypoint)(*args)`: run this node's part of a job to its end."""

    def __init__(self, config: Any, entrypoint: Entrypoint, health_check_server: Any = None) -> None:
        """`config`: torch's LaunchConfig or ours. `entrypoint`: a function that can be pickled, or a program, whose
        arguments follow with the call."""
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Returns and raises as `launch_agent`."""
        return launch_agent(self._config, self._entrypoint, list(args), self._health_check_server)


def launch_agent(
    config: Any, entrypoint: Entrypoint, args: Sequence[Any], health_check_server: Any = None
) -> dict[int, Any]:
    """Run this node's part of a job to its end; return by global rank what the workers returned (None for a program).

    `health_check_server` is started and stopped around the job, as torch does with one that it is given. Raises
    torch's exceptions: ChildFailedError if workers failed, SignalException after a signal, a RendezvousError where
    nodes did not meet; UsageError, a ValueError, for a wrong setting; else the AgentError. Each has ours as its cause.
    """
    title = entrypoint_name(entrypoint, args)
    settings = settings_of(config, os.environ)
    # torch leaves it in the launcher's environment too, where its own code reads it.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = str(config.signals_to_handle)
    console = Console(os.environ, printing_of(os.environ))
    try:
        node = NodeAgent(settings, _runnable(entrypoint, title), *args, tell=console.tell)
        console.name = node.name
        if health_check_server is not None:
            health_check_server.start()
        try:
            return node.run()
        finally:
            if health_check_server is not None:
                health_check_server.stop()
            if node.report is not None and (line := write_summary(node.report, node.name, os.environ)):
                console.tell(line, False)
    except AgentError as error:
        translated = as_torch_error(error, title)
        if translated is None:
            raise
        raise translated from error


def entrypoint_name(entrypoint: Entrypoint, args: Sequence[Any]) -> str:
    """What errors call the job: a function's name, a program, or, if that is this Python, its script."""
    if callable(entrypoint):
        return getattr(entrypoint, "__name__", None) or type(entrypoint).__name__
    if entrypoint == sys.executable:
        return next((arg for arg in args if isinstance(arg, str) and not arg.startswith("-")), "")
    return entrypoint or ""


def _runnable(entrypoint: Entrypoint, title: str) -> Any:
    if isinstance(entrypoint, str):
        return Program(entrypoint, title)
    return entrypoint
