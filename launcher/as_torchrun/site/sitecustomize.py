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
    find_package()
    import_module("elastic_agent.launcher.as_torchrun.place").take_place(api)


def find_package() -> str:
    """Make `elastic_agent` importable in another environment's Python than the one that turned the switch on. Returns
    the folder that had to be added to sys.path; empty if none."""
    if PathFinder.find_spec("elastic_agent") is not None:
        return ""
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(HERE))))
    sys.path.append(folder)
    return folder


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


def become_agent() -> None:
    """Where this process is to be deepspeed's launcher for one node: be our agent. Returns otherwise."""
    if "deepspeed.launcher.launch" not in sys.orig_argv:
        return
    if folder := find_package():
        os.environ["PYTHONPATH"] += os.pathsep + folder
    deepspeed = import_module("elastic_agent.launcher.as_torchrun.deepspeed")
    if (arguments := deepspeed.arguments_of(sys.orig_argv)) is not None:
        deepspeed.become(arguments)


become_agent()
if API in sys.modules:
    put_in_place(sys.modules[API])
else:
    sys.meta_path.insert(0, load_finder()(API, put_in_place))
run_hidden()
