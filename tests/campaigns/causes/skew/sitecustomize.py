"""Another wall clock for this process: TEST_SKEW_S seconds ahead, as on a host whose clock is wrong. Put this folder on
PYTHONPATH.

Every function of Python that returns the time of day is off by that much; the monotonic clocks and C++ are unchanged.
"""

import datetime as dt
import os
import time
from collections.abc import Callable
from typing import Any

_SKEW_S = float(os.environ.get("TEST_SKEW_S", "0"))


def _of_seconds(convert: Callable[[float], Any]) -> Callable[..., Any]:
    def at(seconds: float | None = None) -> Any:
        return convert(time.time() if seconds is None else seconds)

    return at


def _of_moment(convert: Callable[..., str]) -> Callable[..., str]:
    """The moment is the last argument and may be omitted."""
    last = {"asctime": 0, "strftime": 1}[convert.__name__]
    return lambda *given: convert(*given) if len(given) > last else convert(*given, time.localtime())


def _skew() -> None:
    real_time, real_time_ns, real_gettime = time.time, time.time_ns, time.clock_gettime
    vars(time).update(
        time=lambda: real_time() + _SKEW_S,
        time_ns=lambda: real_time_ns() + int(_SKEW_S * 1e9),
        clock_gettime=lambda clock: real_gettime(clock) + (_SKEW_S if clock == time.CLOCK_REALTIME else 0.0),
        **{name: _of_seconds(getattr(time, name)) for name in ("localtime", "gmtime", "ctime")},
        asctime=_of_moment(time.asctime),
        strftime=_of_moment(time.strftime),
    )
    skewed = dt.timedelta(seconds=_SKEW_S)

    class Skewed(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> "Skewed":
            return super().now(tz) + skewed

        @classmethod
        def utcnow(cls) -> "Skewed":
            return super().utcnow() + skewed

        @classmethod
        def today(cls) -> "Skewed":
            return super().today() + skewed

    # Pickled by this name: torchrun pickles the last heartbeats of its nodes.
    Skewed.__name__ = Skewed.__qualname__ = "datetime"
    Skewed.__module__ = "datetime"
    vars(dt)["datetime"] = Skewed


if _SKEW_S:
    _skew()
