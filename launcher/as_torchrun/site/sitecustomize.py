"""What Python imports at its start when PYTHONPATH begins with this folder: the switch of `place.py`.

torch may never be imported in this process, so nothing but an import hook is set up. The user's own sitecustomize,
which this one hides, is run too.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

HERE = os.path.dirname(os.path.abspath(__file__))
API = "torch.distributed.launcher.api"


def put_in_place(api: object) -> None:
    """Replace torch's names in its module `api`."""
    if PathFinder.find_spec("elastic_agent") is None:
        # Another environment's Python than the one that turned the switch on.
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(HERE)))))
    import_module("elastic_agent.launcher.as_torchrun.place").take_place(api)


def load_finder() -> type:
    """`TakePlace`, from the file beside this folder: importing all of our package would take longer."""
    spec = PathFinder.find_spec("finder", [os.path.dirname(HERE)])
    if spec is None or spec.loader is None:
        raise ImportError(f"{HERE} is incomplete; install elastic-agent again")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found: type = module.TakePlace
    return found


def run_hidden() -> None:
    """Run the sitecustomize that Python would have found without this one."""
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path) != HERE])
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if API in sys.modules:
    put_in_place(sys.modules[API])
else:
    sys.meta_path.insert(0, load_finder()(API, put_in_place))
run_hidden()
