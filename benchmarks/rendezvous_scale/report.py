"""The table of all measurements, and what they are held against."""

from __future__ import annotations

from collections.abc import Mapping

from .fit import exponent, grows
from .measure import Figures

Series = Mapping[int, Figures]
"""By number of nodes."""

COLUMNS = (
    ("nodes", "", "{}"),
    ("join, s", "join_s", "{:.2f}"),
    ("cpu, s", "join_cpu_s", "{:.2f}"),
    ("coordinator, s", "join_coordinator_s", "{:.2f}"),
    ("server, s", "join_server_s", "{:.2f}"),
    ("messages", "join_messages", "{:.1f}"),
    ("bytes", "join_bytes", "{:.0f}"),
    ("at rest: messages/s", "steady_messages", "{:.2f}"),
    ("bytes/s", "steady_bytes", "{:.0f}"),
    ("host, % of a core", "host_percent", "{:.1f}"),
    ("restart, s", "restart_s", "{:.2f}"),
    ("cpu, s", "restart_cpu_s", "{:.2f}"),
    ("coordinator, s", "restart_coordinator_s", "{:.2f}"),
    ("of it decisions, s", "restart_decided_s", "{:.3f}"),
    ("messages", "restart_messages", "{:.1f}"),
    ("bytes", "restart_bytes", "{:.0f}"),
    ("death, s", "death_s", "{:.2f}"),
    ("connections", "connections", "{:.1f}"),
    ("descriptors", "descriptors", "{:.0f}"),
)
"""Head, name and form of each column. Messages and bytes are of one guest, both ways."""

FLAT = (("join_messages", 1.5), ("join_bytes", 2.0), ("restart_messages", 1.5), ("restart_bytes", 2.0))
"""What must not grow with the nodes, and how many times its value with the fewest it may have with the most."""
FLAT_FROM = 64
"""Fewer nodes are left out: an announcement of so many lists all members, and costs still grow up to there."""
MOST_EXPONENT = 1.15
"""Of the processor time of all processes together, to join."""


def table(series: Mapping[str, Series]) -> str:
    """One table for each of `series`, with its exponents."""
    parts: list[str] = []
    for name, each in series.items():
        rows = {nodes: _with_host(figures) for nodes, figures in sorted(each.items())}
        columns = [column for column in COLUMNS if not column[1] or any(column[1] in row for row in rows.values())]
        parts += [f"{name}:\n", _row([head for head, _, _ in columns]), _row(["---"] * len(columns))]
        parts += [_row([_cell(nodes, row, *column[1:]) for column in columns]) for nodes, row in rows.items()]
        parts.append(_exponents(rows))
    return "\n".join(parts)


def _with_host(figures: Figures) -> Figures:
    if "steady_coordinator_s" not in figures:
        return figures
    return {**figures, "host_percent": 100 * (figures["steady_coordinator_s"] + figures["steady_server_s"])}


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(nodes: int, row: Figures, name: str, form: str) -> str:
    value = row.get(name) if name else nodes
    return "" if value is None else form.format(value)


def _exponents(rows: Series) -> str:
    found = []
    for name in ("join_s", "join_cpu_s", "restart_cpu_s", "restart_coordinator_s"):
        power = exponent({nodes: row[name] for nodes, row in rows.items() if name in row})
        if power is not None:
            found.append(f"{name} {power:.2f}")
    return f"\nexponents: {', '.join(found) or 'too few points'}\n"


def misses(name: str, each: Series) -> list[str]:
    """What this series of ours misses, one line each."""
    found: list[str] = []
    large = {nodes: figures for nodes, figures in each.items() if nodes >= FLAT_FROM}
    for figure, most in FLAT:
        costs = {nodes: figures[figure] for nodes, figures in large.items() if figure in figures}
        if len(costs) > 1 and grows(costs, most):
            least, last = costs[min(costs)], costs[max(costs)]
            found.append(
                f"{name}: {figure} of one guest is {last:.0f} with {max(costs)} nodes, {least:.0f} with {min(costs)}; "
                f"at most {most:g} times as much"
            )
    power = exponent({nodes: figures["join_cpu_s"] for nodes, figures in large.items()})
    if power is not None and power > MOST_EXPONENT:
        found.append(f"{name}: the processor time to join grows with exponent {power:.2f}; at most {MOST_EXPONENT}")
    return found
