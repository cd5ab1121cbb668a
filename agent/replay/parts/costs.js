// What steps cost: tokens, and seconds by what they went to. What a model does not know of is "–", never 0.
const COSTS = [
  ["tokens in", "input_tokens"], ["of these cached", "cached_tokens"], ["tokens out", "output_tokens"],
  ["waiting", "queue_s"], ["vision", "vision_s"], ["prefill", "prefill_s"], ["decode", "decode_s"],
  ["answers", "answer_s"], ["calls", "call_s"],
];

// Of each run, the sums up to each row; made anew with the rows.
let costsSoFar = [];

function sumCosts() {
  costsSoFar = runs.map((_, k) => {
    let sum = {};
    return rows.map(({ entries }) => {
      const own = entries[k] ? entries[k].cost : {};
      const known = COSTS.filter(([, name]) => own[name] !== undefined);
      if (known.length) sum = Object.assign({}, sum, Object.fromEntries(known.map(([, name]) => [name, (sum[name] || 0) + own[name]])));
      return sum;
    });
  });
}

function shownCost(name, value) {
  if (value === undefined) return "–";
  return name.endsWith("_s") ? `${value.toFixed(2)} s` : Math.round(value).toLocaleString("en");
}

function costTable() {
  const columns = [];
  for (let k = 0; k < runs.length; k += 1) {
    const which = two ? ` ${"AB"[k]}` : "";
    const own = rows[at].entries[k], sums = costsSoFar[k];
    columns.push([`here${which}`, own ? own.cost : {}], [`so far${which}`, sums[at]], [`in all${which}`, sums[sums.length - 1]]);
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
