"""What Python imports before the script when PYTHONPATH begins with this folder; see the package's docstring.

In the zygote the import never returns. In each worker that is forked from it, it does.
"""

from __future__ import annotations

import os
import sys

OURS = "_elastic_agent"
"""The name of our package in this interpreter, where `agent` and `zygote` may be names of the user's modules."""


def run_zygote() -> None:
    """Be the zygote. Returns in the workers only."""
    folder = os.path.dirname(os.path.abspath(__file__))
    package = type(sys)(OURS)
    package.__path__ = [os.path.dirname(folder)]
    sys.modules[OURS] = package
    try:
        from _elastic_agent.zygote.server import serve  # type: ignore[import-not-found]

        serve(folder)
    except BaseException:  # noqa: BLE001 - whatever it is, the script must not run here: that would be a worker too many
        import traceback

        traceback.print_exc()
        os._exit(70)
    for name in [name for name in sys.modules if name.partition(".")[0] == OURS]:
        del sys.modules[name]


if "ELASTIC_AGENT_ZYGOTE" in os.environ:
    run_zygote()
if sys.modules.get(__name__) is None or sys.modules[__name__].__dict__ is globals():
    # As if there were no sitecustomize, which `site` tolerates. It recognises that case by this name.
    raise ImportError("there is no sitecustomize", name="sitecustomize")
