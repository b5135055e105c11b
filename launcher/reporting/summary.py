"""How a job ended, the same on every node: the verdict below the failure summary, and a JSON file for programs.

Both are made of what the coordinator announced, so every node tells the same; a node that never heard of it tells what
it saw itself. docs/exit-codes.md lists the keys.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from ...agent.report import Report
from ...rendezvous.failures import PASSIVE, Ending, Judged, Role, WorkerFailure

VARIABLE = "ELASTIC_AGENT_SUMMARY"
FILE = "summary.json"
"""In the job's log directory, where there is one and the variable names no other place."""


def failed_ones(report: Report) -> tuple[WorkerFailure, ...]:
    """What the block lists: every worker of the job that failed, whoever caused it; not those only stopped."""
    ending = _ending(report)
    if ending is None or not ending.judged:
        return report.failures
    return tuple(each.death for each in ending.judged if each.death.sign not in PASSIVE)


def verdict_lines(report: Report) -> str:
    """What follows the block: who was the cause and why, who only followed. Begins with a newline; may be empty."""
    ending = _ending(report)
    if ending is None or not ending.judged:
        return ""
    lines = []
    for role in Role:
        told = [
            f"{_place(each.death)}: {each.because or 'nothing tells'}" for each in ending.judged if each.role is role
        ]
        if told:
            lines.append(f"{role.value:<10}: " + "\n            ".join(told))
    return "\n" + "\n".join(lines)


def write_summary(report: Report, name: str, env: Mapping[str, str]) -> str:
    """Write how the job ended, if it did not succeed, for the node called `name`. Returns "" or why it could not be
    written, in one line."""
    if report.verdict.exit_code == 0 and report.verdict.cause is None:
        return ""
    path = env.get(VARIABLE) or (f"{report.log_dir}/{FILE}" if report.log_dir else "")
    if not path:
        return ""
    spare = f"{path}.{os.getpid()}.tmp"
    try:
        with open(spare, "w", encoding="utf-8") as file:
            json.dump(as_dict(report, name), file, indent=1)
            file.write("\n")
        os.replace(spare, path)
    except OSError as error:
        if os.path.lexists(spare):
            os.unlink(spare)
        return f"cannot write the summary {path}: {error.strerror or error}; see to the log directory, or to {VARIABLE}"
    return ""


def as_dict(report: Report, name: str) -> dict[str, object]:
    """The file's content."""
    verdict = report.verdict
    ending = _ending(report)
    judged = ending.judged if ending else ()
    seen = judged or tuple(Judged(each, Role.UNDECIDED, "seen by this node only") for each in report.failures)
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
        "cause": _told(verdict.cause) if verdict.cause else None,
        "ends": [{"role": each.role.value, "role_because": each.because, **_told(each.death)} for each in seen],
    }


def _ending(report: Report) -> Ending | None:
    return report.verdict.ending


def _place(death: WorkerFailure) -> str:
    return f"rank {death.rank} on {death.node}"


def _told(death: WorkerFailure) -> dict[str, object]:
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
        "sign": death.sign.value,
        "sign_because": death.sign_because,
        "suspects": list(death.suspects),
        "message": death.message,
        "said": death.said,
        "note": death.note,
        "error_file": death.error_file,
        "at": death.at,
    }
