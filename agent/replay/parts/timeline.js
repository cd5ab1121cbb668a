// The timeline: a slider, above it bars as high as a step took long, and marks colored by what happened.
const scrubber = byId("scrubber"), ticks = byId("ticks");
const COLORS = { denied: "--bad", failed: "--bad", asked: "--asked", undone: "--line", person: "--person", network: "--mark", subtask: "--bar" };
let byTime = false;

// Of two runs, the one with more to show gives the time: clocks and pace of the other are its own.
let timed = 0;

function timeOf(row) {
  const entry = two ? row.entries[timed] : firstOf(row);
  return entry ? entry.t + (entry.kind === "step" ? entry.seconds : 0) : NaN;
}

// The times of the shown rows, none before the one above it.
let times = [];

function takeTimes() {
  const counts = runs.map((_, k) => shown.filter((n) => rows[n].entries[k]).length);
  timed = counts.indexOf(Math.max(...counts));
  let latest = NaN;
  times = shown.map((n) => {
    const time = timeOf(rows[n]);
    if (!(time <= latest) && !Number.isNaN(time)) latest = time;
    return latest;
  });
  const first = times.find((time) => !Number.isNaN(time)) || 0;
  times = times.map((time) => Number.isNaN(time) ? first : time);
}

// Where a shown row stands, from 0 to 1.
function placeOf(n) {
  if (shown.length < 2) return 0;
  if (!byTime) return n / (shown.length - 1);
  const begin = times[0], end = times[times.length - 1];
  return end > begin ? (times[n] - begin) / (end - begin) : n / (shown.length - 1);
}

// The shown row nearest to a place.
function rowAt(place) {
  if (!byTime) return Math.round(place * (shown.length - 1));
  let best = 0;
  for (let n = 1; n < shown.length; n += 1) if (Math.abs(placeOf(n) - place) < Math.abs(placeOf(best) - place)) best = n;
  return best;
}

const secondsOf = (row) => Math.max(...row.entries.map((entry) => entry ? entry.seconds : 0));

function drawTimeline() {
  takeTimes();
  const wide = ticks.clientWidth, high = 34, ratio = devicePixelRatio || 1;
  ticks.width = Math.max(1, wide * ratio);
  ticks.height = high * ratio;
  const paint = ticks.getContext("2d"), styles = getComputedStyle(document.documentElement);
  const color = (name) => styles.getPropertyValue(name).trim();
  const most = Math.max(0.001, ...sampled(shown.map((n) => secondsOf(rows[n]))));
  const edge = 8, x = (n) => (edge + placeOf(n) * (wide - 2 * edge)) * ratio;
  const thick = Math.max(1.5, Math.min(10, (wide - 2 * edge) / Math.max(1, shown.length) - 1)) * ratio;
  let episode = -1;
  shown.forEach((number, n) => {
    const row = rows[number], left = x(n) - thick / 2;
    paint.fillStyle = color(hasTag(row, "undone") ? "--line" : "--bar");
    const bar = Math.max(1, Math.sqrt(secondsOf(row) / most) * 22) * ratio;
    paint.fillRect(left, 24 * ratio - bar, thick, bar);
    if (row.episode !== episode) {
      episode = row.episode;
      paint.fillStyle = color("--quiet");
      paint.fillRect(x(n) - ratio / 2, 0, ratio, high * ratio);
    }
    const tag = Object.keys(COLORS).find((one) => hasTag(row, one));
    if (tag) {
      paint.fillStyle = color(COLORS[tag]);
      paint.fillRect(left, 26 * ratio, Math.max(thick, 3 * ratio), 7 * ratio);
    } else if (two && row.differs) {
      paint.fillStyle = color("--mark");
      paint.fillRect(left, 30 * ratio, thick, 3 * ratio);
    }
  });
  shown.forEach((number, n) => {  // over the bars: where the shorter of two runs ends
    for (const name of lastsAt(number)) {
      const right = x(n) + thick / 2;
      paint.fillStyle = color("--back");
      paint.fillRect(right, 0, 13 * ratio, 13 * ratio);
      paint.fillStyle = color("--mark");
      paint.fillRect(right, 0, 1.5 * ratio, high * ratio);
      paint.font = `bold ${11 * ratio}px sans-serif`;
      paint.fillText(name, right + 4 * ratio, 11 * ratio);
    }
  });
}

// The numbers, without those beyond what can be the arguments of one call.
const sampled = (numbers) => [numbers.reduce((most, one) => Math.max(most, one), 0)];

function placeScrubber() {
  const n = shown.indexOf(at), row = rows[at];
  scrubber.max = byTime ? 1 : Math.max(0, shown.length - 1);
  scrubber.value = byTime ? placeOf(n) : n;
  const gone = two && row ? row.entries.map((entry, k) => entry ? "" : ` – ${absence(k, at)}`).join("") : "";
  const words = row ? `${label(firstOf(row))}, ${n + 1} of ${shown.length}${gone}` : "nothing to show";
  scrubber.setAttribute("aria-valuetext", words);
  byId("position").textContent = words;
}

scrubber.addEventListener("input", () => {
  follow(false);
  const n = byTime ? rowAt(Number(scrubber.value)) : Math.round(Number(scrubber.value));
  if (shown[n] !== undefined && shown[n] !== at) go(shown[n]);
});

function toggleByTime() {
  byTime = !byTime;
  byId("by-time").setAttribute("aria-pressed", byTime);
  drawTimeline();
  placeScrubber();
}

byId("by-time").onclick = toggleByTime;
new ResizeObserver(drawTimeline).observe(ticks);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTimeline);

function fillLegend() {
  byId("legend").replaceChildren(...Object.entries(COLORS).filter(([tag]) => rows.some((row) => hasTag(row, tag))).map(([tag, color]) => {
    const item = make("span"), dot = make("i");
    dot.style.background = `var(${color})`;
    item.append(dot, TAGS[tag]);
    return item;
  }));
}
