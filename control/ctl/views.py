"""What `elasticctl` shows of several agents of one job at once."""

from __future__ import annotations

import io
import re
import select
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...rendezvous.text import duration
from .asking import ask_all, begin, call, call_brief
from .call import AgentUnreachable, CallRefused, Message
from .causes import Account, as_account
from .find import Agent

MIB = 1 << 20


def together(found: Sequence[Agent], method: str, **fields: object) -> tuple[list[Message], list[str]]:
    """The answers of these agents, asked at once, and a line for each that does not answer."""
    answers, silent = [], []
    for each in ask_all([agent.path for agent in found], method, fields):
        if isinstance(each, CallRefused):
            raise each
        if isinstance(each, AgentUnreachable):
            silent.append(str(each))
        else:
            answers.append(each)
    return answers, silent


def streams(found: Sequence[Agent], method: str, **fields: object) -> Iterator[Message]:
    """The messages of these agents as they come, until all have ended. Raises AgentUnreachable where one cannot be
    asked."""
    calls = {each.fileno(): each for each in (begin(agent.path, method, fields) for agent in found)}
    poll = select.poll()
    for fd in calls:
        poll.register(fd, select.POLLIN)
    try:
        while calls:
            for fd, _ in poll.poll():
                yield from calls[fd].arrived()
                if calls[fd].ended:
                    poll.unregister(fd)
                    calls.pop(fd).close()
    finally:
        for each in calls.values():
            each.close()


def last_lines(parts: Iterable[Message], lines: int) -> list[Message]:
    """Each stream's last lines."""
    found: dict[tuple[int, str], Message] = {}
    for part in parts:
        key = (part["rank"], part["stream"])
        known = found.setdefault(key, {**part, "text": ""})
        known["text"] += part["text"]
    for part in found.values():
        # As agents count them: what a progress bar draws over and over is one line.
        part["text"] = "".join(list(io.StringIO(part["text"]))[-lines:] if lines else [])
    return list(found.values())


def merged(answers: Sequence[Message]) -> list[Message]:
    """The groups of stacks of several agents as one list: those that are equal together, the odd one first."""
    groups: dict[str, dict[str, Any]] = {}
    for answer in answers:
        for group in answer["groups"]:
            text = re.sub(r"^(Process|Thread|Python v).*$", "", group.get("text", ""), flags=re.MULTILINE)
            one = groups.setdefault(f"{group['at']}\n{text}", {**group, "ranks": []})
            one["ranks"] = sorted([*one["ranks"], *group["ranks"]])
    return sorted(groups.values(), key=lambda group: (group.get("waits", False), len(group["ranks"]), group["ranks"]))


def ranks_of(agent: Agent) -> range:
    """The ranks of this agent's workers in its round, of those that have exited, too: what they wrote is kept."""
    status = agent.status
    if "groupRank" not in status:
        return range(0)
    own: Message = next((each for each in status["members"] if each["groupRank"] == status["groupRank"]), {})
    first = own.get("rankOffset", 0)
    return range(first, first + own.get("nproc", len(status["workerPids"])))


def having(found: Sequence[Agent], ranks: Sequence[int]) -> list[Agent]:
    """Those of these agents that run one of these ranks; all, where no rank is named."""
    return [each for each in found if not ranks or set(ranks) & set(ranks_of(each))]


def top(workers: Sequence[Message], before: Mapping[tuple[str, int], tuple[float, float]], now_s: float) -> list[str]:
    """A table of workers. `before`: processor time by node and pid, and when that was read; without it, the mean since
    the worker's start."""
    rows = [("RANK", "NODE", "PID", "STATE", "CPU %", "MEMORY", "GPU %", "GPU MEMORY", "WRITTEN", "SINCE", "SECTION")]
    for answer in workers:
        for each in answer["workers"]:
            cpu_s, age_s = each.get("cpuS", 0.0), each.get("ageS", 0.0)
            known = before.get((answer["name"], each["pid"]))
            past_s = now_s - known[1] if known else age_s
            used = 100 * (cpu_s - (known[0] if known else 0.0)) / past_s if past_s > 0 else 0.0
            section = f"{each.get('section', '')} {each.get('steps', '')}".strip()
            rows.append(
                (
                    str(each["rank"]), answer["name"], str(each["pid"]), each["state"], f"{used:.0f}",
                    f"{each.get('rssBytes', 0) / MIB:,.0f} MiB",
                    f"{each['gpuPercent']:.0f}" if "gpuPercent" in each else "-",
                    f"{each['gpuBytes'] / MIB:,.0f} MiB" if "gpuBytes" in each else "-",
                    f"{each.get('writtenBytes', 0) / MIB:,.1f} MiB",
                    duration(age_s), section,
                )
            )  # fmt: skip
    rows[1:] = sorted(rows[1:], key=lambda row: int(row[0]))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return ["  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in rows]


def job_and_workers(
    found: Sequence[Agent], chosen: Agent, *, brief: bool
) -> tuple[Message, list[Message], list[Message], list[str]]:
    """What the status is made of: the job as one agent reports it, the workers of all agents here, the last events, and
    a line for each agent that does not answer. `brief`: of many nodes only those that need attention."""
    job = dict(call_brief(chosen.path, "Job") if brief else call(chosen.path, "Job"))
    workers, silent = together(found, "Workers")
    job["goodput"] = Account([as_account(each) for each in together(found, "Goodput")[0]]).lines()[:1]
    events = list(begin(chosen.path, "Events", {"since": -20}).messages(3.0))
    return job, workers, events, silent


def events_kept_by(found: Sequence[Agent]) -> list[Message]:
    """The events that the agents of a job keep here, and their accounts. Raises AgentUnreachable where none can
    be asked."""
    accounts, silent = together(found, "Goodput")
    answering = {account["name"] for account in accounts}
    asked = [agent for agent in found if agent.status["name"] in answering]
    if not asked:
        raise AgentUnreachable(silent[0])
    return [*streams(asked, "Events"), *map(as_account, accounts)]
