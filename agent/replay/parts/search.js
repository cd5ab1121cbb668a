// What is shown: the rows that hold the searched text, are of the chosen kind and, if wanted, were not undone.
const search = byId("search"), filter = byId("filter"), hideUndone = byId("hide-undone");
const texts = new Map();  // of entries, in small letters
let shown = [];

const wanted = () => search.value.trim().toLowerCase();

function textOf(entry) {
  let text = texts.get(entry);
  if (text === undefined) {
    text = [label(entry), ...entry.facts, ...entry.notes.flat(), ...entry.plan.map(([, title]) => title)].join("\n").toLowerCase();
    texts.set(entry, text);
  }
  return text;
}

function fillFilter() {
  const chosen = filter.value;
  const tags = Object.entries(TAGS).filter(([tag]) => tag !== "undone" && rows.some((row) => hasTag(row, tag)));
  const options = [["", "all steps"], ...tags, ...(two ? [["differs", "where they differ"]] : [])];
  filter.replaceChildren(...options.map(([value, text]) => make("option", text, { value })));
  filter.value = options.some(([value]) => value === chosen) ? chosen : "";
  byId("undone-label").hidden = !rows.some((row) => hasTag(row, "undone"));
}

// Choose the rows anew; the one that was shown stays if it is among them.
function choose() {
  const word = wanted(), kind = filter.value;
  shown = rows.map((_, n) => n).filter((n) => {
    const row = rows[n];
    if (hideUndone.checked && hasTag(row, "undone")) return false;
    if (kind && !(kind === "differs" ? row.differs : hasTag(row, kind))) return false;
    return !word || row.entries.some((entry) => entry && textOf(entry).includes(word));
  });
  const narrowed = word || kind;
  byId("found").textContent = narrowed ? `${shown.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")}` : "";
  fillList(shown);
  drawTimeline();
}

function chooseAndShow() {
  choose();
  if (!shown.includes(at) && shown.length) at = shown.find((n) => n >= at) ?? shown[shown.length - 1];
  go(at, frame);
}

// Mark what was found, without touching the text itself.
function highlight() {
  if (!globalThis.CSS?.highlights) return;
  CSS.highlights.delete("found");
  const word = wanted(), ranges = [];
  if (!word) return;
  const walk = document.createTreeWalker(details, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node && ranges.length < 500; node = walk.nextNode()) {
    const text = node.data.toLowerCase();
    if (text.length !== node.data.length) continue;  // small letters of another length would shift the places
    for (let place = text.indexOf(word); place >= 0 && ranges.length < 500; place = text.indexOf(word, place + word.length)) {
      const range = new Range();
      range.setStart(node, place);
      range.setEnd(node, place + word.length);
      ranges.push(range);
    }
  }
  if (!ranges.length) return;
  CSS.highlights.set("found", new Highlight(...ranges));
  ranges[0].startContainer.parentElement.scrollIntoView({ block: "nearest" });
}

let typing = null;
search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(chooseAndShow, 150); });
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") { step(event.shiftKey ? -1 : 1); event.preventDefault(); }
  if (event.key === "Escape") { search.value = ""; chooseAndShow(); search.blur(); }
});
filter.onchange = chooseAndShow;
hideUndone.onchange = chooseAndShow;
