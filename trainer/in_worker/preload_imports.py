"""What workers would import before their first batch, imported once, in the process that they are forked from.

Importing this module there does it: torch's optimizers, which import a second's worth of modules when the first one is
made, and the modules that the creators are from.
"""

from __future__ import annotations

import importlib
import os

import torch

from .. import paths
from ..names import FOLDER
from . import session  # noqa: F401 - to be there when a worker begins


def _import_ahead(folder: str) -> None:
    modules = paths.take(folder)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001, S112 - the worker that needs it raises the same, and is asked for its traceback
            continue


if FOLDER in os.environ:
    _import_ahead(os.environ[FOLDER])
