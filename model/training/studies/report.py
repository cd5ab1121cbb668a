"""A study's results as a Markdown table and a picture in plain SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from pilotfish.model.training.studies.catalog import Study

if TYPE_CHECKING:
    from pilotfish.model.training.studies.jobs import Plan

Row = dict[str, Any]
BAR, LABEL, LINE = 360, 190, 22
CELL = 26
COLOURS = ("#1f6fb4", "#d1603d", "#3a8f5c", "#8a5fb0", "#888888")
CURVES = {"best": "#888888", "chosen": "#1f6fb4", "window": "#3a8f5c", "even": "#d1603d"}


def table(study: Study, plan: Plan, seeds: int, rows: Sequence[Row]) -> str:
    """What was asked, the means over the finished seeds with their range, and layers where there are some.

    seeds: how many are wanted of each variant.
    """
    text = [f"# {study.name}", "", study.question, ""]
    is_trained = any("train_s" in row or "failed" in row for row in rows)
    said = (
        f"{plan.text_tokens:,} tokens of text in {plan.steps} steps, scale {plan.scale}, "
        if is_trained
        else ""
    )
    text += [f"{said}{plan.device}, {seeds} seed{'s' * (seeds > 1)} wanted of each.", ""]
    if is_trained and (beside := max(row.get("beside", 1) for row in rows)) > 1:
        text += [f"Up to {beside} trainings shared the device, so that seconds do not compare.", ""]
    names = _flat_names(rows)
    if names:
        text += _lines(["", "seeds", *["training s"] * is_trained, *names], [
            [variant, str(len(own))]
            + [_spread([row["train_s"] for row in own if "train_s" in row])] * is_trained
            + [_spread([row["values"][name] for row in own if name in row["values"]]) for name in names]
            for variant, own in _by_variant(rows)
        ])  # fmt: skip
    if not rows:
        text += ["Nothing is finished yet.", ""]
    for row in rows:
        if "failed" in row:
            text += [f"{row['variant']}, seed {row['seed']}: {row['failed']}", ""]
    for variant, own in _by_variant(rows):
        if layers := _recall_of(own):
            names = ["layer", "keys", "chosen", "best", "window", "even", "blocks"]
            text += [f"## {variant}", ""]
            text += _lines(
                names,
                [[f"{one[n]:.3f}" if i > 1 else str(one[n]) for i, n in enumerate(names)] for one in layers],
            )
        if heads := _map_of(own):
            text += [f"## {variant}", ""]
            text += _lines(["layer", "mean", "least", "most"], [
                [str(n), *(f"{x:.3f}" for x in (sum(row) / len(row), min(row), max(row)))]
                for n, row in enumerate(heads)
            ])  # fmt: skip
    return "\n".join(text).rstrip() + "\n"


def picture(study: Study, rows: Sequence[Row]) -> str:
    """Bars of every measure with a dot per seed; for recall curves by length, for maps layers by heads."""
    parts: list[str] = []
    y, width = 20.0, LABEL + BAR + 120
    curves = [(variant, layers) for variant, own in _by_variant(rows) if (layers := _recall_of(own))]
    maps = [(variant, heads) for variant, own in _by_variant(rows) if (heads := _map_of(own))]
    for variant, layers in curves:
        y += _curves(parts, y, variant, layers)
    for variant, heads in maps:
        y += _heat(parts, y, variant, heads)
    if not curves and not maps:
        for name in _flat_names(rows):
            y += _bars(parts, y, name, rows)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y + 10:.0f}" '
        'font-family="sans-serif" font-size="12">',
        f'<title>{escape(study.question)}</title><rect width="100%" height="100%" fill="white"/>',
        *parts,
        "</svg>\n",
    ])  # fmt: skip


def _bars(parts: list[str], y: float, name: str, rows: Sequence[Row]) -> float:
    """A panel of one measure; its height."""
    lines = [
        (variant, values)
        for variant, own in _by_variant(rows)
        if (values := [row["values"][name] for row in own if name in row["values"]])
    ]
    top = max((value for _, values in lines for value in values), default=0) or 1.0
    parts.append(f'<text x="10" y="{y + 12:.0f}" font-weight="bold">{escape(name)}</text>')
    for n, (variant, values) in enumerate(lines):
        at, mean = y + 20 + n * LINE, sum(values) / len(values)
        parts.append(f'<text x="{LABEL - 6}" y="{at + 13:.0f}" text-anchor="end">{escape(variant)}</text>')
        parts.append(
            f'<rect x="{LABEL}" y="{at:.0f}" width="{mean / top * BAR:.1f}" height="{LINE - 6}" '
            f'fill="{COLOURS[n % len(COLOURS)]}" fill-opacity="0.6"/>'
        )
        parts += [
            f'<circle cx="{LABEL + value / top * BAR:.1f}" cy="{at + 8:.0f}" r="3" fill="#222222"/>'
            for value in values
        ]
        parts.append(f'<text x="{LABEL + BAR + 10}" y="{at + 13:.0f}">{mean:.4g}</text>')
    return 30 + len(lines) * LINE


def _curves(parts: list[str], y: float, variant: str, layers: Sequence[Row]) -> float:
    """Share of mass by layer, a panel per length; its height."""
    height, x = 140, 40.0
    parts.append(f'<text x="10" y="{y + 12:.0f}" font-weight="bold">{escape(variant)}: share of mass</text>')
    for n, (name, colour) in enumerate(CURVES.items()):
        parts.append(f'<text x="{300 + n * 80}" y="{y + 12:.0f}" fill="{colour}">{name}</text>')
    lengths = sorted({one["keys"] for one in layers})
    wide = (LABEL + BAR + 60) / max(1, len(lengths)) - 40
    for keys in lengths:
        own = [one for one in layers if one["keys"] == keys]
        base = y + 40 + height
        parts.append(
            f'<rect x="{x:.0f}" y="{y + 40:.0f}" width="{wide:.0f}" height="{height}" fill="none" '
            'stroke="#cccccc"/>'
        )
        parts.append(f'<text x="{x:.0f}" y="{y + 34:.0f}">up to {keys} keys</text>')
        parts += [
            f'<text x="{x - 4:.0f}" y="{base - value * height + 4:.0f}" text-anchor="end">{value:g}</text>'
            for value in (0, 0.5, 1)
        ]
        for name, colour in CURVES.items():
            points = [
                (x + (n + 0.5) / len(own) * wide, base - one[name] * height) for n, one in enumerate(own)
            ]
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.5" fill="{colour}"/>' for px, py in points]
        for n, one in enumerate(own):
            at = x + (n + 0.5) / len(own) * wide
            parts.append(f'<text x="{at:.0f}" y="{base + 16:.0f}" text-anchor="middle">{one["layer"]}</text>')
        x += wide + 40
    return height + 80


def _heat(parts: list[str], y: float, variant: str, heads: Sequence[Sequence[float]]) -> float:
    """Layers by heads, dark where little attention goes to vision; its height."""
    parts.append(
        f'<text x="10" y="{y + 12:.0f}" font-weight="bold">{escape(variant)}: attention of text on vision, '
        "layers down, heads across</text>"
    )
    for n, row in enumerate(heads):
        at = y + 24 + n * CELL
        parts.append(f'<text x="30" y="{at + 17:.0f}" text-anchor="end">{n}</text>')
        for h, value in enumerate(row):
            light = round(255 * min(1.0, value) ** 0.5)
            ink = "#000000" if light > 130 else "#ffffff"
            parts.append(
                f'<rect x="{40 + h * 2 * CELL}" y="{at:.0f}" width="{2 * CELL - 2}" height="{CELL - 2}" '
                f'fill="rgb({light},{light},{light})" stroke="#999999"/>'
                f'<text x="{40 + (2 * h + 1) * CELL - 1}" y="{at + 16:.0f}" text-anchor="middle" '
                f'fill="{ink}">{value:.2f}</text>'
            )
    return 40 + len(heads) * CELL


def _by_variant(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The finished trials of each variant, in the order they were first met."""
    out: dict[str, list[Row]] = {}
    for row in rows:
        if "values" in row:
            out.setdefault(row["variant"], []).append(row)
    return list(out.items())


def _flat_names(rows: Sequence[Row]) -> list[str]:
    names: dict[str, None] = {}
    for row in rows:
        names |= {k: None for k, v in row.get("values", {}).items() if isinstance(v, int | float)}
    return list(names)


def _recall_of(rows: Sequence[Row]) -> list[Row]:
    """Recall by layer and length, meant over the seeds."""
    groups: dict[tuple[int, int], list[Row]] = {}
    for one in (one for row in rows for one in row["values"].get("recall", [])):
        groups.setdefault((one["layer"], one["keys"]), []).append(one)
    names = ("chosen", "best", "window", "even", "blocks")
    return [
        {"layer": layer, "keys": keys} | {n: sum(one[n] for one in own) / len(own) for n in names}
        for (layer, keys), own in sorted(groups.items())
    ]


def _map_of(rows: Sequence[Row]) -> list[list[float]]:
    """Layers by heads, meant over the seeds."""
    maps = [row["values"]["map"] for row in rows if "map" in row["values"]]
    return [
        [sum(values) / len(values) for values in zip(*layer, strict=True)]
        for layer in zip(*maps, strict=True)
    ]


def _spread(values: Sequence[float]) -> str:
    """The mean, and the range where there are several."""
    if not values:
        return "-"
    mean = f"{sum(values) / len(values):.4g}"
    return mean if min(values) == max(values) else f"{mean} ({min(values):.4g} to {max(values):.4g})"


def _lines(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (names, ["---"] * len(names), *rows)] + [""]
