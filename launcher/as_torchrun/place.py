"""The switch: puts our `elastic_launch` where torch has its own, in this process and in all that it starts.

One name decides: whatever launches through torch calls what `torch.distributed.launcher.api.elastic_launch` is in its
process. In a Python process that is started with the switch on, `site/sitecustomize.py` replaces it when torch defines
it; tools that call `torchrun` by name find `bin/torchrun` first on PATH. An interpreter started with -I or -E, or
`torchrun` called by its path with such an interpreter, escapes the switch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
SITE = os.path.join(HERE, "site")
"""For PYTHONPATH."""
SHIMS = os.path.join(HERE, "bin")
"""For PATH: a program `torchrun` that is our command."""
API = "torch.distributed.launcher.api"
_NAMES = ("elastic_launch", "launch_agent")


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """What the environment `env` must be given for the switch to be on in a process. Again on top of itself it changes
    nothing."""
    return {
        "PATH": _first(SHIMS, env.get("PATH", os.defpath)),
        "PYTHONPATH": _first(SITE, env.get("PYTHONPATH", "")),
        "ELASTIC_AGENT_PYTHON": sys.executable,
    }


def install() -> None:
    """Turn the switch on in this process and, by its environment, in all that it starts from now on."""
    os.environ.update(variables(os.environ))
    if API in sys.modules:
        take_place(sys.modules[API])
    elif SITE not in sys.path:
        from .finder import TakePlace

        sys.meta_path.insert(0, TakePlace(API, take_place))


def take_place(api: Any) -> None:
    """Replace torch's two names in its module `api`, and where other modules have imported them from it."""
    from . import elastic

    old = [getattr(api, name) for name in _NAMES]
    for module in [module for name, module in sys.modules.items() if name.startswith("torch.distributed")]:
        for name, function in zip(_NAMES, old, strict=True):
            if module.__dict__.get(name) is function:
                setattr(module, name, getattr(elastic, name))


def _first(folder: str, path: str) -> str:
    rest = [one for one in path.split(os.pathsep) if one and one != folder]
    return os.pathsep.join([folder, *rest])
