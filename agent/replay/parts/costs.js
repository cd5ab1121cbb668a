// What steps cost: tokens, and seconds by what they went to. What a model does not know of is "–", never 0.
const COSTS = [
  ["tokens in", "input_tokens"], ["of these cached", "cached_tokens"], ["tokens out", "output_tokens"],
  ["waiting", "queue_s"], ["vision", "vision_s"], ["prefill", "prefill_s"], ["decode", "decode_s"],
  ["answers", "answer_s"], ["calls", "call_s"],
];

function sumOf(entries) {
  const sum = {};
  for (const entry of entries) {
    for (const [, name] of COSTS) if (entry && entry.cost[name] !== undefined) sum[name] = (sum[name] || 0) + entry.cost[name];
  }
  return sum;
}

function shownCost(name, value) {
  if (value === undefined) return "–";
  return name.endsWith("_s") ? `${value.toFixed(2)} s` : Math.round(value).toLocaleString("en");
}

function costTable() {
  const columns = [];
  for (let k = 0; k < runs.length; k += 1) {
    const which = two ? ` ${"AB"[k]}` : "";
    const own = rows.map((row) => row.entries[k]);
    columns.push([`here${which}`, sumOf([own[at]])], [`so far${which}`, sumOf(own.slice(0, at + 1))], [`in all${which}`, sumOf(own)]);
  }
  if (two) {
    const [a, b] = [columns[2][1], columns[5][1]];
    const more = COSTS.filter(([, name]) => a[name] !== undefined && b[name] !== undefined).map(([, name]) => [name, b[name] - a[name]]);
    columns.push(["B − A", Object.fromEntries(more)]);
  }
  const table = make("table", "", { className: "costs" });
  const head = make("tr");
  head.append(make("th", "cost"), ...columns.map(([title]) => make("th", title, { scope: "col" })));
  table.append(head);
  for (const [title, name] of COSTS) {
    if (columns.every(([, sum]) => sum[name] === undefined)) continue;
    const line = make("tr");
    line.append(make("th", title, { scope: "row" }), ...columns.map(([, sum]) => make("td", shownCost(name, sum[name]))));
    table.append(line);
  }
  const box = make("div", "", { className: "wide" });
  box.append(table);
  return box;
}
