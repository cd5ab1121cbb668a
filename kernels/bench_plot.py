"""The bench's picture: time against length of context, both logarithmic, a panel per job. Plain SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from pilotfish.kernels.bench_table import Row

PANEL, MARGIN, GAP = (360, 260), 60, 40
COLOURS = {"full attention": "#888888", "bf16": "#1f6fb4", "fp8": "#d1603d"}
PANELS = {"chunk": "8,192 new tokens", "step": "32 new tokens", "decode": "one token"}


def picture(rows: Sequence[Row]) -> str:
    """An SVG of the jobs that have a time at two lengths or more; empty panels are left out."""
    panels = {title: lines for job, title in PANELS.items() if (lines := _lines(rows, job))}
    width = MARGIN + len(panels) * (PANEL[0] + GAP + MARGIN)
    height = PANEL[1] + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, (title, lines) in enumerate(panels.items()):
        parts.append(f'<g transform="translate({MARGIN + i * (PANEL[0] + GAP + MARGIN)},{MARGIN})">')
        parts += _panel(title, lines)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def _lines(rows: Sequence[Row], job: str) -> dict[str, list[tuple[int, float]]]:
    """Name of a line to its (keys, ms), by keys; the smallest number of new tokens alone."""
    mine = [row for row in rows if row.job == job]
    fewest = min((row.new_tokens for row in mine), default=0)
    lines: dict[str, dict[int, float]] = {}
    for row in (row for row in mine if row.new_tokens == fewest):
        lines.setdefault(row.index_type, {})[row.keys] = row.ours_ms
        if row.full_ms is not None:
            lines.setdefault("full attention", {})[row.keys] = row.full_ms
    return {name: sorted(lines[name].items()) for name in sorted(lines) if len(lines[name]) > 1}


def _panel(title: str, lines: dict[str, list[tuple[int, float]]]) -> list[str]:
    points = [point for line in lines.values() for point in line]
    left, right = (math.log2(f(keys for keys, _ in points)) for f in (min, max))
    low = math.floor(math.log10(min(ms for _, ms in points)))
    high = max(math.ceil(math.log10(max(ms for _, ms in points))), low + 1)

    def place(keys: int, ms: float) -> tuple[float, float]:
        across = (math.log2(keys) - left) / (right - left) * PANEL[0]
        return across, (high - math.log10(ms)) / (high - low) * PANEL[1]

    parts = [
        f'<text x="0" y="-24" font-size="14">{escape(title)}</text>',
        f'<rect width="{PANEL[0]}" height="{PANEL[1]}" fill="none" stroke="#cccccc"/>',
    ]
    for power in range(low, high + 1):
        y = (high - power) / (high - low) * PANEL[1]
        parts.append(f'<line x1="0" x2="{PANEL[0]}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eeeeee"/>')
        parts.append(f'<text x="-6" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g} ms</text>')
    for keys in sorted({keys for keys, _ in points}):
        across, _ = place(keys, 10.0**low)
        name = f"{keys // 1024}K" if keys < 1 << 20 else f"{keys >> 20}M"
        parts.append(f'<text x="{across:.1f}" y="{PANEL[1] + 18}" text-anchor="middle">{name}</text>')
    x = 0.0
    for name, line in lines.items():
        colour = COLOURS.get(name, "#000000")
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        label = name if name == "full attention" else f"MSA, {name} index keys"
        parts.append(f'<text x="{x:.0f}" y="-6" fill="{colour}">{escape(label)}</text>')
        x += 6.0 * len(label) + 12  # about as wide as it is drawn
    return parts
