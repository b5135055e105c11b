"""The curves as one SVG: two panels with logarithmic axes, seconds over nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from .report import Series

WIDTH, HEIGHT, LEFT, TOP, PANEL_W, PANEL_H = 860, 400, 60, 50, 330, 280
COLOURS = ("#1f77b4", "#2ca02c", "#d62728", "#9467bd")
PANELS = (("join_s", "wall time until all have their rank"), ("join_cpu_s", "processor time of all processes"))


def draw(series: Mapping[str, Series]) -> str:
    """The SVG. Measurements without a figure are left out."""
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for at, (figure, title) in enumerate(PANELS):
        lines = {
            name: [(nodes, row[figure]) for nodes, row in sorted(each.items()) if row.get(figure, 0) > 0]
            for name, each in series.items()
        }
        parts += _panel(LEFT + at * (PANEL_W + 90), title, {name: points for name, points in lines.items() if points})
    for at, name in enumerate(series):
        x = LEFT + at * 200
        parts.append(f'<rect x="{x}" y="{HEIGHT - 22}" width="14" height="4" fill="{COLOURS[at % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 20}" y="{HEIGHT - 16}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(left: float, title: str, lines: Mapping[str, Sequence[tuple[int, float]]]) -> list[str]:
    points = [point for each in lines.values() for point in each]
    if not points:
        return []
    x_low, x_high = _decades([x for x, _ in points])
    y_low, y_high = _decades([y for _, y in points])

    def across(value: float) -> float:
        return left + PANEL_W * (math.log10(value) - x_low) / (x_high - x_low)

    def up(value: float) -> float:
        return TOP + PANEL_H * (1 - (math.log10(value) - y_low) / (y_high - y_low))

    parts = [f'<text x="{left}" y="{TOP - 16}" font-weight="bold">{escape(title)}, s</text>']
    for power in range(x_low, x_high + 1):
        x = across(10**power)
        parts.append(f'<path d="M{x:.1f} {TOP}v{PANEL_H}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + PANEL_H + 16}" text-anchor="middle">{10**power:,}</text>')
    for power in range(y_low, y_high + 1):
        y = up(10**power)
        parts.append(f'<path d="M{left} {y:.1f}h{PANEL_W}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{10**power:g}</text>')
    parts.append(f'<text x="{left + PANEL_W / 2}" y="{TOP + PANEL_H + 34}" text-anchor="middle">nodes</text>')
    for at, each in enumerate(lines.values()):
        colour = COLOURS[at % len(COLOURS)]
        path = "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in each)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}"/>' for x, y in each]
    return parts


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)
