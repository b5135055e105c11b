"""Worker side of `--run-path`: `python -u -m elastic_agent.launcher.in_worker.run_path SCRIPT ARGS...`.

Runs SCRIPT as `__main__` with `runpy.run_path`, as torch 2.13's `run_script_path` does. An exception, also the one
that a SystemExit is raised from, is written to the file that TORCHELASTIC_ERROR_FILE names, in the format of torch's
`@record`.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the script `sys.argv[1]`; its own `sys.argv` begins there. Raises what the script raises."""
    import faulthandler
    import runpy

    if len(sys.argv) < 2:
        raise SystemExit("run_path: no script is given; give its path")
    faulthandler.enable(all_threads=True)
    del sys.argv[0]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except (Exception, SystemExit) as error:
        cause = error if isinstance(error, Exception) else error.code and error.__cause__
        if isinstance(cause, Exception):
            record(cause, os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
        raise


def record(error: Exception, path: str) -> None:
    """Write `error` to `path`, whole or not at all, with its traceback; does nothing if `path` is empty."""
    if not path:
        return
    import json
    import time
    import traceback

    extra = {"py_callstack": "".join(traceback.format_exception(error)), "timestamp": str(int(time.time()))}
    content = {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}
    try:
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(file.name, path)
    except OSError as problem:
        # The script's exception is raised all the same, so stderr shows both.
        print(f"run_path: cannot write the error file {path!r}: {problem}", file=sys.stderr)


if __name__ == "__main__":
    main()
