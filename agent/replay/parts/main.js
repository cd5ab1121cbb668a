// Where one is, and going elsewhere.
let at = 0, frame = 0, timer = null;
let stages = [];

// Show a row, at one of its frames.
function go(number, wantedFrame = 0, changed = false) {
  const fresh = changed || number !== at || wantedFrame === 0;
  at = Math.min(Math.max(number, 0), Math.max(0, rows.length - 1));
  const row = rows[at];
  showLine();
  placeScrubber();
  if (!row) return;
  frame = Math.min(wantedFrame, frameCount(row) - 1);
  for (const stage of stages) stage.show(row, frame, fresh);
  showDetails();
  remember();
}

const frameCount = (row) => Math.max(1, ...row.entries.map((entry) => entry ? entry.frames.length : 0));

function showFrame(n) {
  if (!rows[at]) return;
  frame = Math.min(Math.max(n, 0), frameCount(rows[at]) - 1);
  for (const stage of stages) stage.show(rows[at], frame, false);
}

// Go so many of the shown rows on.
function step(count) {
  if (!shown.length) return;
  const n = shown.indexOf(at);
  go(shown[Math.min(Math.max(n + count, 0), shown.length - 1)]);
}

function toMark(way) {
  const marked = (number) => rows[number].differs || Object.keys(COLORS).some((tag) => tag !== "subtask" && hasTag(rows[number], tag));
  const found = way > 0 ? shown.find((n) => n > at && marked(n)) : shown.findLast((n) => n < at && marked(n));
  if (found !== undefined) go(found);
}

function play() {
  const button = byId("play");
  if (timer) { clearInterval(timer); timer = null; }
  else timer = setInterval(playOn, 600 / Number(byId("speed").value));
  button.setAttribute("aria-pressed", timer !== null);
  button.textContent = timer ? "❚❚ Stop" : "▶ Play";
}

function playOn() {
  if (rows[at] && frame + 1 < frameCount(rows[at])) showFrame(frame + 1);
  else if (shown.some((n) => n > at)) step(1);
  else play();
}

// The address tells the step, so that it can be passed on.
let remembering = null;
function remember() {
  clearTimeout(remembering);
  if (!boot.live) remembering = setTimeout(() => history.replaceState(null, "", `#${at + 1}`), 500);
}

function fromAddress() {
  const named = Number(location.hash.slice(1));
  return !boot.live && Number.isInteger(named) && named >= 1 ? named - 1 : 0;
}

const stepsOf = (k) => {
  const count = rows.filter(({ entries }) => entries[k] && entries[k].kind === "step" && !entries[k].tags.includes("undone")).length;
  return count === 1 ? "1 step" : `${count.toLocaleString("en")} steps`;
};

function fillHead() {
  byId("title").textContent = runs.map((run) => run.run).join(" and ");
  byId("facts").textContent = runs.map((run, k) => [two && `${"AB"[k]}: ${stepsOf(k)}`, run.command, `model ${run.model}`, run.status, run.sandbox,
    ...run.usage].filter(Boolean).join(" · ")).join(" — ");
  const warnings = runs.flatMap((run) => [...run.warnings, run.status === "failed" && run.reason].filter(Boolean));
  byId("warnings").replaceChildren(...warnings.slice(0, 5).map((warning) => make("p", warning)));
  if (warnings.length > 5) byId("warnings").append(make("p", `And ${warnings.length - 5} more warnings.`));
}

function fillAll() {
  makeRows();
  sumCosts();
  const seen = rows.some((row) => row.entries.some((entry) => entry && entry.frames.length));
  document.body.classList.toggle("blind", rows.length > 0 && !seen);  // work on files alone has no screen
  fillHead();
  fillFilter();
  fillLegend();
  choose();
}

byId("before").onclick = () => step(-1);
byId("after").onclick = () => step(1);
byId("play").onclick = play;
byId("speed").onchange = () => { if (timer) { play(); play(); } };
addEventListener("hashchange", () => { if (!boot.live) go(fromAddress()); });
// Frames stand behind the script, so that the page can be used while they are read.
document.addEventListener("DOMContentLoaded", () => { if (!boot.live) go(at, frame, true); });

if (boot.live) startLive();
else {
  fillAll();
  stages = runs.map((_, k) => new Stage(k));
  if (two) byId("stages").append(differenceBox);
  go(fromAddress());
}
