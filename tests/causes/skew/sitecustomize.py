"""Another wall clock for this process: TEST_SKEW_S seconds ahead. Put this folder on PYTHONPATH."""

import os
import time

_SKEW_S = float(os.environ.get("TEST_SKEW_S", "0"))
if _SKEW_S:
    _time, _localtime = time.time, time.localtime
    time.time = lambda: _time() + _SKEW_S
    time.localtime = lambda seconds=None: _localtime(time.time() if seconds is None else seconds)
