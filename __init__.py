"""elastic-agent: a node agent daemon for distributed PyTorch training.

    from elastic_agent import LaunchConfig, launch

The names below are the whole public face. They are looked up when first used, so that importing the package costs
nothing that the importer does not use.
"""

from __future__ import annotations

# Type checkers take this name for true, wherever it is defined; importing it from `typing` would cost start-up time.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from .agent.errors import AgentError as AgentError
    from .agent.errors import FinalisationTimedOut as FinalisationTimedOut
    from .agent.errors import HostFailed as HostFailed
    from .agent.errors import InternalError as InternalError
    from .agent.errors import KillSwitch as KillSwitch
    from .agent.errors import OtherJob as OtherJob
    from .agent.errors import OtherVersion as OtherVersion
    from .agent.errors import Preempted as Preempted
    from .agent.errors import RendezvousTimedOut as RendezvousTimedOut
    from .agent.errors import RestartForbidden as RestartForbidden
    from .agent.errors import StoppedBySignal as StoppedBySignal
    from .agent.errors import StoreLost as StoreLost
    from .agent.errors import UsageError as UsageError
    from .agent.errors import WorkersFailed as WorkersFailed
    from .agent.lifecycle.state import Phase as Phase
    from .agent.report import AgentEvent as AgentEvent
    from .agent.report import Status as Status
    from .launcher.api import Module as Module
    from .launcher.api import NodeAgent as NodeAgent
    from .launcher.api import Program as Program
    from .launcher.api import launch as launch
    from .launcher.config.config import LaunchConfig as LaunchConfig
    from .rendezvous.failures import WorkerFailure as WorkerFailure
    from .rendezvous.records import Member as Member

    MachineFailed = HostFailed

__version__ = "0.1.0"

_HOMES = {
    "AgentError": "agent.errors",
    "AgentEvent": "agent.report",
    "FinalisationTimedOut": "agent.errors",
    "InternalError": "agent.errors",
    "KillSwitch": "agent.errors",
    "HostFailed": "agent.errors",
    "LaunchConfig": "launcher.config.config",
    "Member": "rendezvous.records",
    "Module": "launcher.api",
    "NodeAgent": "launcher.api",
    "OtherJob": "agent.errors",
    "OtherVersion": "agent.errors",
    "Phase": "agent.lifecycle.state",
    "Preempted": "agent.errors",
    "Program": "launcher.api",
    "RendezvousTimedOut": "agent.errors",
    "RestartForbidden": "agent.errors",
    "Status": "agent.report",
    "StoppedBySignal": "agent.errors",
    "StoreLost": "agent.errors",
    "UsageError": "agent.errors",
    "WorkerFailure": "rendezvous.failures",
    "WorkersFailed": "agent.errors",
    "launch": "launcher.api",
}

__all__ = [
    "AgentError",
    "AgentEvent",
    "FinalisationTimedOut",
    "InternalError",
    "KillSwitch",
    "LaunchConfig",
    "HostFailed",
    "Member",
    "Module",
    "NodeAgent",
    "OtherJob",
    "OtherVersion",
    "Phase",
    "Preempted",
    "Program",
    "RendezvousTimedOut",
    "RestartForbidden",
    "Status",
    "StoppedBySignal",
    "StoreLost",
    "UsageError",
    "WorkerFailure",
    "WorkersFailed",
    "__version__",
    "launch",
]


_RENAMED = {"MachineFailed": "HostFailed"}
"""Names of earlier versions, which still work, and what they are called now."""


def __getattr__(name: str) -> object:
    name = _RENAMED.get(name, name)
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
