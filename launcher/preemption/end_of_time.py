"""Until when a job's time lasts, and how long its processes have once they are asked to stop: what schedulers say.

Times of day are this host's: the workers of this node get them, and no other host compares them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from ...agent.errors import UsageError
from ...agent.spec import WorkerSpec
from ...proto.frozen import dataclass, replace
from ...rendezvous.text import duration

DEADLINE = "ELASTIC_AGENT_DEADLINE"
"""Variable of workers, and of the agent: Unix time in seconds at which the job's time ends."""
TERMINATION_GRACE = "ELASTIC_AGENT_TERMINATION_GRACE"
"""Variable: seconds between SIGTERM and SIGKILL, as the scheduler has them: a pod's terminationGracePeriodSeconds."""
SLURM_JOB, SLURM_END = "SLURM_JOB_ID", "SLURM_JOB_END_TIME"
SLURM_ELEMENT = "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"
"""Variables of an array's element. One of them has the id of the array, for which scontrol prints all."""
SLURM_FORM = {"SLURM_TIME_FORMAT": "standard"}
"""Variables of scontrol, whose times a user may have in another form."""
LATEST = 253402300799
"""The end of the year 9999."""
ANSWER_S = 2.0
"""How long SLURM's controller has to answer. It takes some milliseconds; a job must not wait for one that is down."""
MARGIN_S = 5.0
"""What the agent leaves of the scheduler's time between SIGTERM and SIGKILL: to kill workers and say how it ended."""
DEFAULT_GRACE_S = 30.0
LEAST_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class SlurmTimes:
    """What SLURM says."""

    end_s: float | None = None
    """Unix time at which the job's time ends; None: it has no end, or that is not known."""
    kill_wait_s: float | None = None
    """Seconds between SIGTERM and SIGKILL; None: not known."""
    trouble: str = ""
    """Why something is not known."""


def unix_time(name: str, value: str | float) -> float:
    """A time as Unix seconds, or as 2026-11-22T17:30:00, in this host's zone where it names none. Raises
    UsageError, which calls it `name`."""
    from datetime import datetime  # here and below: most jobs have no deadline

    try:
        at_s = float(value)
    except OverflowError:
        at_s = LATEST + 1.0
    except ValueError:
        try:
            at_s = datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
        except (ValueError, OverflowError, OSError):
            raise UsageError(
                f"{name} is {value!r}, which is no time; give Unix seconds, or such as 2026-11-22T17:30:00"
            ) from None
    if not 0 < at_s <= LATEST:
        raise UsageError(f"{name} is {value!r}, outside the years from 1970 to 9999; give another time")
    return at_s


def earliest(minutes: float | None, at: str | float, env: Mapping[str, str], now_s: float) -> float | None:
    """The first of the ends that this job's flags and its environment give, and that have not passed; where all have,
    the first of these; None: there is none. Raises UsageError."""
    ends = []
    if minutes is not None:
        ends.append(now_s + 60 * minutes)
    if at:
        ends.append(unix_time("--deadline", at))
    if text := env.get(DEADLINE, ""):
        ends.append(unix_time(DEADLINE, text))
    if (text := env.get(SLURM_END, "")) and text.replace(".", "", 1).isdigit():
        ends.append(float(text))
    # A variable that was left from another job must not hide when this one ends.
    return min((end_s for end_s in ends if end_s > now_s), default=min(ends, default=None))


def read_end(text: str, job: str) -> float | None:
    """The EndTime of this job in what `scontrol show job` prints, as Unix time; None: Unknown or none."""
    import re
    from datetime import datetime

    records = re.split(r"^(?=JobId=)", text, flags=re.MULTILINE)
    value = _after(next((each for each in records if each.startswith(f"JobId={job} ")), ""), "EndTime=")
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def read_kill_wait(text: str) -> float | None:
    """The KillWait in what `scontrol show config` prints, in seconds."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "KillWait":
            seconds = value.split()[0] if value.split() else ""
            return float(seconds) if seconds.isdigit() else None
    return None


def ask_slurm(
    env: Mapping[str, str], run: Callable[[list[str], float], str], *, end: bool = True, wait: bool = True
) -> SlurmTimes:
    """What SLURM's controller says of this job: its end, and the time between its signals, each where it is asked for.
    `run`: gives what a command prints within so many seconds, and raises NoReading."""
    from ...control.commands import NoReading

    job = env[SLURM_JOB]
    end_s = kill_wait_s = None
    try:
        if end:
            element = [env.get(name, "") for name in SLURM_ELEMENT]
            named = "_".join(element) if all(element) else job
            end_s = read_end(run(["scontrol", "show", "job", named], ANSWER_S), job)
        if wait:
            kill_wait_s = read_kill_wait(run(["scontrol", "show", "config"], ANSWER_S))
    except NoReading as error:
        what = "until when SLURM's job {} may run" if end else "how long SLURM lets job {} stop"
        return SlurmTimes(end_s, trouble=f"{what.format(job)} is not known: {error}")
    return SlurmTimes(end_s, kill_wait_s)


def _run(argv: list[str], limit_s: float) -> str:
    """Raises NoReading."""
    from ...control.commands import Asker

    return Asker().run(argv, limit_s, env={**os.environ, **SLURM_FORM})


def grace_below(known_s: float) -> float:
    """The workers' grace where the scheduler kills all `known_s` after SIGTERM, in seconds."""
    # Workers that save first get half as long for that.
    return max(LEAST_GRACE_S, min(DEFAULT_GRACE_S, (known_s - MARGIN_S) / 1.5))


def settle_within(known_s: float, grace_s: float) -> float:
    """How long workers with this grace may save first. Where the scheduler leaves more than both need, a save may take
    it: what is not saved then is lost."""
    return max(grace_s / 2, known_s - MARGIN_S - grace_s)


def says_something(env: Mapping[str, str], base_env: Mapping[str, str]) -> bool:
    """Whether `fitted` may change anything: a scheduler, or the job's end, is known."""
    return bool(env.get(SLURM_JOB) or env.get(TERMINATION_GRACE) or base_env.get(DEADLINE))


def fitted(
    workers: WorkerSpec,
    env: Mapping[str, str],
    tell: Callable[[str, bool], None],
    *,
    grace_given: bool,
    now_s: float | None = None,
) -> WorkerSpec:
    """The workers' specification with what the scheduler says: the deadline in their environment, and a grace that ends
    before its own does, unless the user chose one. Asks SLURM only in a job of SLURM, and only for what is not known.

    Raises UsageError where a variable is no number.
    """
    known_s = _termination_grace(env)
    base_env = dict(workers.base_env)
    now_s = time.time() if now_s is None else now_s
    end, wait = float(base_env.get(DEADLINE) or 0) <= now_s, known_s is None and not grace_given
    if env.get(SLURM_JOB) and (end or wait):
        times = ask_slurm(env, _run, end=end, wait=wait)
        if times.trouble:
            tell(times.trouble, True)
        known_s = times.kill_wait_s if known_s is None else known_s
        if times.end_s is not None:
            base_env[DEADLINE] = f"{times.end_s:.0f}"
    if base_env.get(DEADLINE):
        _tell_end(float(base_env[DEADLINE]) - now_s, tell)
    grace_s = workers.grace_s if known_s is None or grace_given else grace_below(known_s)
    if grace_s != workers.grace_s:
        tell(f"workers get {grace_s:g} s to stop: the scheduler kills all {known_s:g} s after SIGTERM", True)
    settle_s = None if known_s is None else settle_within(known_s, grace_s)
    return replace(workers, base_env=base_env, grace_s=grace_s, term_settle_s=settle_s)


def _tell_end(left_s: float, tell: Callable[[str, bool], None]) -> None:
    """How long the job has yet. An end that has passed is none to workers, and may be a typing error."""
    if left_s > 0:
        tell(f"the job's time ends in {duration(left_s)} ({DEADLINE})", True)
        return
    when = f"the job's time has ended {duration(-left_s)} ago" if left_s < -1 else "the job's time ends at once"
    tell(f"{when}, so no worker saves before an end; correct --deadline, --exit-duration-in-mins or {DEADLINE}", False)


def _termination_grace(env: Mapping[str, str]) -> float | None:
    text = env.get(TERMINATION_GRACE, "")
    try:
        known_s = float(text) if text else None
    except ValueError:
        known_s = -1.0
    if known_s is not None and not 0 <= known_s < 1e9:
        raise UsageError(f"{TERMINATION_GRACE} is {text!r}; give seconds, at least 0")
    return known_s


def _after(text: str, key: str) -> str:
    return (text.partition(key)[2].split() or [""])[0]
