"""A worker of a trainer: `python -u -m elastic_agent.trainer.in_worker.entry`, started by the program's agent.

`initialization_hook` is called before torch is touched; the program's `sys.path` is known by then.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os

from ...agent.zygote.preimport import rarely_collecting
from .. import paths, pickled_values
from ..names import FOLDER, HOOK


def main() -> None:
    """Carry out calls until the program shuts the trainer down."""
    faulthandler.enable(all_threads=True)
    folder = os.environ[FOLDER]
    paths.take(folder)
    hook = pickled_values.read(folder, HOOK) if os.path.exists(os.path.join(folder, HOOK)) else None
    if hook is not None:
        try:
            hook()
        except SystemExit as error:
            # Else this worker would seem to have done what was asked of it.
            raise RuntimeError(
                f"initialization_hook called sys.exit({error.code!r}); raise an exception, or return, instead"
            ) from error
    with rarely_collecting():
        from .session import serve
    gc.freeze()

    serve(folder)
    # Nothing is left to do. What torch and the program consist of is no garbage, and is not searched for any.
    atexit.unregister(gc.unfreeze)  # of a worker that was forked with its modules
    gc.freeze()


if __name__ == "__main__":
    main()
