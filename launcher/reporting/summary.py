"""How a job ended, the same on every node: the verdict below the failure summary, and a JSON file for programs.

Both are made from the coordinator's announcement of how the last round ended, so they are the same on every node. A
node that has not received it reports the failures of its own workers. docs/exit-codes.md lists the keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...agent.errors import AgentError
from ...agent.failures.error_files import write_json
from ...agent.output.log_dirs import make_temporary_dir
from ...rendezvous.failures import PASSIVE, Ending, Judged, Role, WorkerFailure
from ...rendezvous.records import Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...agent.report import Report

VARIABLE = "ELASTIC_AGENT_SUMMARY"
FILE = "summary.json"
"""Name of the file in a temporary directory, if the variable names no other file and the job has log files. It is never
in the log directory, whose content is torchrun's."""


def failed_workers(report: Report) -> tuple[WorkerFailure, ...]:
    """What the failure summary lists: every worker of the job that failed, as cause or as collateral; not those that
    were only stopped."""
    ending = _ending(report)
    if ending is None or not ending.judged:
        return report.failures
    return tuple(each.death for each in ending.judged if each.death.sign not in PASSIVE)


def verdict_lines(report: Report) -> str:
    """What stands below the failure summary: which worker was the cause and why, which were collateral, which are
    undecided. Begins with a newline; empty if the coordinator judged no worker."""
    ending = _ending(report)
    if ending is None or not ending.judged:
        return ""
    lines = []
    for role in Role:
        judged = [
            f"{_place(each.death)}: {each.because or 'no evidence'}" for each in ending.judged if each.role is role
        ]
        if judged:
            lines.append(f"{role.value:<10}: " + "\n            ".join(judged))
    return "\n" + "\n".join(lines)


def write_summary(report: Report, name: str, env: Mapping[str, str]) -> str:
    """Write the file, if the job did not succeed, for the node called `name`: to the path that `VARIABLE` names, else,
    if a worker failed or a round was ended, to a temporary directory. Returns one line for people: where it is,
    unless the user said where, or why it could not be written; or an empty string."""
    if report.verdict.exit_code == 0 and report.verdict.cause is None:
        return ""
    path = env.get(VARIABLE) or ""
    wanted = (report.failures or _ending(report)) and report.verdict.outcome is not Outcome.PREEMPTED
    if not path and report.log_dir and wanted:
        # Where no worker failed the last line says all; whoever wants a file then names it.
        try:
            path = f"{report.temporary_dir or make_temporary_dir()}/{FILE}"
        except AgentError as error:
            return f"cannot write the summary: {error}; name a file with {VARIABLE}"
    if not path:
        return ""
    try:
        write_json(path, as_dict(report, name), indent=1)
    except OSError as error:
        return f"cannot write the summary {path}: {error.strerror or error}; name another file with {VARIABLE}"
    return "" if env.get(VARIABLE) else f"the summary for programs is {path}"


def as_dict(report: Report, name: str) -> dict[str, object]:
    """Content of the file."""
    verdict = report.verdict
    ending = _ending(report)
    judged = ending.judged if ending else ()
    exits = judged or tuple(Judged(each, Role.UNDECIDED, "seen by this node only") for each in report.failures)
    return {
        "node": name,
        "exit_code": verdict.exit_code,
        "outcome": verdict.outcome.value if verdict.outcome else None,
        "because": verdict.because,
        "round": ending.round if ending else report.round,
        "ended_by": ending.kind.value if ending else None,
        "ended_because": ending.because if ending else "",
        "judged": ending.role.value if ending and verdict.cause else None,
        "charged": ending.charged if ending else "",
        "cause": _worker(verdict.cause) if verdict.cause else None,
        "ends": [{"role": each.role.value, "role_because": each.because, **_worker(each.death)} for each in exits],
    }


def _ending(report: Report) -> Ending | None:
    return report.verdict.ending


def _place(death: WorkerFailure) -> str:
    return f"rank {death.rank} on {death.node}"


def _worker(death: WorkerFailure) -> dict[str, object]:
    return {
        "node": death.node,
        "host": death.host,
        "rank": death.rank,
        "local_rank": death.local_rank,
        "pid": death.pid,
        "exit_code": death.exit_code,
        "stopped_by": death.stopped_by,
        "order": death.order,
        "after_s": round(death.after_s, 6),
        "lived_s": round(death.lived_s, 3),
        "sign": death.sign.value,
        "sign_because": death.sign_because,
        "suspects": list(death.suspects),
        "message": death.message,
        "said": death.said,
        "note": death.note,
        "error_file": death.error_file,
        "at": death.at,
    }
