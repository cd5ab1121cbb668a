// What the page was given: one run, or two that are compared, and rows made of their entries.
const byId = (id) => document.getElementById(id);
const boot = JSON.parse(byId("run").textContent);
const runs = boot.runs;
const two = runs.length === 2;
const TAGS = {
  failed: "failed", denied: "denied or not run", asked: "asked a person", undone: "undone", subtask: "in a sub-task",
  person: "a person's doing", network: "refused network", waiting: "not finished",
};
let rows = [];  // {entries: one of each run or null, episode: its number among those shown, differs}

function makeRows() {
  const flat = runs.map((run) => run.episodes.flatMap((episode, number) =>
    episode.entries.map((entry, n) => ({ entry: whole(entry), number, key: `${number}:${n}` }))));
  rows = two
    ? boot.rows.map(([a, b, differs]) => rowOf([flat[0][a], flat[1][b]], differs))
    : flat[0].map((one) => rowOf([one], ""));
  if (two) findEndings();
}

function rowOf(pair, differs) {
  const some = pair.find(Boolean);
  return { entries: pair.map((one) => one ? one.entry : null), episode: some.number, key: some.key, differs };
}

function whole(entry) {
  const empty = { t: 0, seconds: 0, frames: [], times: [], marks: {}, notes: [], facts: [], cost: {}, plan: [], tags: [] };
  for (const name of Object.keys(empty)) if (entry[name] === undefined) entry[name] = empty[name];
  return entry;
}

const firstOf = (row) => row.entries.find(Boolean);
const episodeOf = (k, row) => runs[k].episodes[row.episode];
const hasTag = (row, tag) => row.entries.some((entry) => entry && entry.tags.includes(tag));

function label(entry) {
  return entry.step === undefined || ["person", "steering"].includes(entry.kind) ? entry.title : `${entry.step}. ${entry.title}`;
}

function make(tag, text = "", properties = {}) {
  const node = document.createElement(tag);
  if (text !== "") node.textContent = text;
  return Object.assign(node, properties);
}

// Where a frame is: {url} or {why}. Of a run that is served, `asked` (live.js) brings it.
async function frameOf(name) {
  if (!name) return { why: "No screen has been seen yet." };
  if (Object.hasOwn(boot.absent, name)) return { why: boot.absent[name] };
  if (boot.live) return fetchFrame(name);
  const held = byId(`f-${name}`);
  if (held) return { url: held.textContent };
  return { why: document.readyState === "loading" ? "Loading …" : "This frame is missing." };
}
