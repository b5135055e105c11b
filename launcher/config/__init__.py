"""What a user asks for: flags, their values and variables, checked once and turned into the agent's specification.

May import `agent`, `rendezvous` and `proto`. `LaunchConfig` and `plan` can be imported from here, because this package
was one module in early 0.1.0; they live in `config.py`, which is loaded when one of them is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .config import LaunchConfig as LaunchConfig
    from .config import plan as plan


def __getattr__(name: str) -> object:
    if name not in ("LaunchConfig", "plan"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import config

    return getattr(config, name)
