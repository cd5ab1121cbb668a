// The list of steps. Only the lines that can be seen are there, so that thousands cost nothing.
const list = byId("list"), listRows = byId("rows");
let lines = [];  // numbers of rows, and headings of episodes as texts
let lineOf = new Map();

function fillList(shown) {
  lines = [];
  lineOf = new Map();
  let episode = -1;
  for (const at of shown) {
    if (rows[at].episode !== episode) {
      episode = rows[at].episode;
      lines.push(heading(rows[at]));
    }
    lineOf.set(at, lines.length);
    lines.push(at);
  }
  drawList();
}

function heading(row) {
  const { task, seed } = runs.map((_, k) => episodeOf(k, row)).find(Boolean);
  return seed === null ? task : `${task} · seed ${seed}`;
}

const lineHeight = () => parseFloat(getComputedStyle(document.documentElement).fontSize)
  * parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));

function drawList() {
  const high = lineHeight(), first = Math.max(0, Math.floor(list.scrollTop / high) - 5);
  const last = Math.min(lines.length, first + Math.ceil((list.clientHeight || 600) / high) + 10);
  listRows.style.height = `${lines.length * high}px`;
  const nodes = [];
  for (let n = first; n < last; n += 1) {
    const line = lines[n], node = typeof line === "string" ? make("div", line, { className: "row heading" }) : rowNode(line);
    node.style.top = `${n * high}px`;
    nodes.push(node);
  }
  listRows.replaceChildren(...nodes);
}

function rowNode(number) {
  const row = rows[number], first = firstOf(row);
  const tags = row.entries.flatMap((entry) => entry ? entry.tags : []);
  const node = make("div", "", { id: `row-${number}`, className: ["row", first.kind, ...tags].join(" ") });
  if (two && row.differs) node.classList.add("differs");
  if (two && number === boot.parting) node.classList.add("parting");
  node.setAttribute("role", "option");
  node.setAttribute("aria-selected", number === at);
  node.setAttribute("aria-setsize", shown.length);
  node.setAttribute("aria-posinset", lineOf.get(number) + 1);
  for (const name of lastsAt(number)) node.append(make("span", `${name} ends`, { className: "ends" }));
  node.append(make("span", label(first), { className: "what" }));
  const told = [...new Set(tags)].filter((tag) => tag !== "subtask").map((tag) => TAGS[tag]);
  if (told.length) node.append(make("span", ` (${told.join(", ")})`, { className: "away" }));
  node.title = label(first);
  node.onclick = () => { go(number); follow(false); };
  return node;
}

// Bring the chosen line into view, and mark it.
function showLine() {
  const line = lineOf.get(at), high = lineHeight();
  if (line !== undefined) {
    const top = line * high;
    if (top < list.scrollTop + high) list.scrollTop = Math.max(0, top - high);
    else if (top + 2 * high > list.scrollTop + list.clientHeight) list.scrollTop = top + 2 * high - list.clientHeight;
    list.setAttribute("aria-activedescendant", `row-${at}`);
  }
  drawList();
}

list.addEventListener("scroll", drawList, { passive: true });
new ResizeObserver(drawList).observe(list);
