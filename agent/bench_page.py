"""A report on MiniWoB++ as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from pilotfish.agent.bench_miniwob import GOOD, in_sentences
from pilotfish.agent.events import LogError
from pilotfish.agent.show import sandbox_note
from pilotfish.agent.whole_file import write_whole

PAGE = "report.html"
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bar: #3a8f5c; --low: #c2703d; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } ul { padding-left: 1.2rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .5rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child, .words { text-align: left; white-space: normal; }
th { position: sticky; top: 0; background: Canvas; cursor: pointer; }
th[aria-sort=ascending]::after { content: ' \\2191'; } th[aria-sort=descending]::after { content: ' \\2193'; }
.bar { display: inline-block; width: 7rem; height: .7rem; background: var(--line); vertical-align: middle; }
.bar i { display: block; height: 100%; background: var(--low); } .good .bar i { background: var(--bar); }
.held { font-size: .8em; border: 1px solid var(--line); padding: 0 .3rem; margin-left: .4rem; }
"""
_SCRIPT = """
const head = document.querySelectorAll('#tasks th'), body = document.querySelector('#tasks tbody');
head.forEach((cell, column) => cell.addEventListener('click', () => {
  const now = cell.getAttribute('aria-sort'), up = now === 'descending' || (column === 0 && !now);
  head.forEach((other) => other.removeAttribute('aria-sort'));
  cell.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
  const order = (a, b) => isNaN(key(a)) || isNaN(key(b)) ? key(a).localeCompare(key(b)) : key(a) - key(b);
  [...body.rows].sort((a, b) => up ? order(a, b) : order(b, a)).forEach((row) => body.append(row));
}));
"""


def write_page(result: dict[str, Any]) -> str:
    """Write the report of `bench_miniwob.add_miniwob` into its run's folder; returns the path.

    Raises `LogError` where that cannot be written.
    """
    path = Path(result["folder"]) / PAGE
    try:
        write_whole(path, page(result).encode())
    except OSError as error:
        raise LogError(f"Cannot write {path} ({error.strerror}); free some room there.") from error
    return str(path)


def page(result: dict[str, Any]) -> str:
    """The report as HTML; everything that came from elsewhere is escaped."""
    who = escape(f"{result['model']}" + (f", {result['attention']} attention" if result["attention"] else ""))
    mean = "nothing was measured" if result["mean_success"] is None else f"{result['mean_success']:.1%}"
    facts = [f"<strong>mean success {mean}</strong>", *map(escape, in_sentences(result))]
    if result.get("baseline_mean_success") is not None:
        facts.append(f"random clicks: mean {result['baseline_mean_success']:.1%}")
    if not result["complete"]:
        facts.append("not all was played yet")
    facts.append(f"{escape(result['limits'])}; from pixels alone; run {escape(result['run'])}")
    if note := sandbox_note(result["sandbox_level"], result["network"]):
        facts.append(escape(note))
    published = "".join(
        f"<tr><td>{escape(m['who'])}</td><td>{_range(m['low'], m['high'])}</td>"
        f"<td class=words>{escape(m['of'])}</td><td class=words>{escape(m['source'])}</td></tr>"
        for m in result["miniwob"]["published"]
    )
    heads = [
        "task",
        "class",
        "n",
        "success",
        "",
        "95 % interval",
        "random clicks",
        "steps",
        "s/step p50",
        "p95",
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>MiniWoB++ report</title>'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
        f"<style>{_STYLE}</style><h1>MiniWoB++: {who}</h1>"
        f"<ul>{''.join(f'<li>{fact}</li>' for fact in facts)}</ul>"
        f"<table id=tasks><thead><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead>"
        f"<tbody>{''.join(_row(row) for row in result['tasks'])}</tbody></table>"
        "<h2>What others report</h2><p>Means over the tasks each chose, with its own time limits and its own "
        "counting, so they are no measure of this run.</p>"
        "<table><tr><th>who</th><th>mean</th><th class=words>of</th><th class=words>source</th></tr>"
        f"{published}</table>"
        f"<script>{_SCRIPT}</script></html>\n"
    )


def _row(row: dict[str, Any]) -> str:
    success = row["success"]
    name = escape(row["task"]) + ("<span class=held>held out</span>" if row["held_out"] else "")
    cells = [
        name,
        escape(row["class"]),
        str(row["episodes"]),
        f"{success:.0%}",
        f'<span class=bar><i style="width:{100 * success:.1f}%"></i></span>',
        f"{row['ci_low']:.0%} to {row['ci_high']:.0%}",
        _share(row.get("baseline_success")),
        f"{row['steps']:.1f}",
        f"{row['seconds_per_step_p50']:.2f}",
        f"{row['seconds_per_step_p95']:.2f}",
    ]
    keys = [row["task"], row["class"], row["episodes"], success, success, row["ci_low"]]
    baseline = row.get("baseline_success")
    keys += [
        -1 if baseline is None else baseline,
        row["steps"],
        row["seconds_per_step_p50"],
        row["seconds_per_step_p95"],
    ]
    filled = "".join(
        f'<td data-sort="{escape(str(key))}">{cell}</td>' for key, cell in zip(keys, cells, strict=True)
    )
    return f"<tr{' class=good' if success >= GOOD else ''}>{filled}</tr>"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _range(low: float, high: float) -> str:
    return f"{low:.1%}" if low == high else f"{low:.1%} to {high:.1%}"
