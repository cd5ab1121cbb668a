// The timeline: a slider, above it bars as high as a step took long, and marks colored by what happened.
const scrubber = byId("scrubber"), ticks = byId("ticks");
const COLORS = { denied: "--bad", failed: "--bad", asked: "--asked", undone: "--line", person: "--person", network: "--mark", subtask: "--bar" };
let byTime = false;

const timeOf = (row) => { const first = firstOf(row); return first.t + (first.kind === "step" ? first.seconds : 0); };

// Where a shown row stands, from 0 to 1.
function placeOf(n) {
  if (shown.length < 2) return 0;
  if (!byTime) return n / (shown.length - 1);
  const begin = timeOf(rows[shown[0]]), end = timeOf(rows[shown[shown.length - 1]]);
  return end > begin ? Math.min(1, Math.max(0, (timeOf(rows[shown[n]]) - begin) / (end - begin))) : n / (shown.length - 1);
}

// The shown row nearest to a place.
function rowAt(place) {
  if (!byTime) return Math.round(place * (shown.length - 1));
  let best = 0;
  for (let n = 1; n < shown.length; n += 1) if (Math.abs(placeOf(n) - place) < Math.abs(placeOf(best) - place)) best = n;
  return best;
}

function drawTimeline() {
  const wide = ticks.clientWidth, high = 34, ratio = devicePixelRatio || 1;
  ticks.width = Math.max(1, wide * ratio);
  ticks.height = high * ratio;
  const paint = ticks.getContext("2d"), styles = getComputedStyle(document.documentElement);
  const color = (name) => styles.getPropertyValue(name).trim();
  const most = Math.max(0.001, ...sampled(shown.map((n) => firstOf(rows[n]).seconds)));
  const edge = 8, x = (n) => (edge + placeOf(n) * (wide - 2 * edge)) * ratio;
  const thick = Math.max(1.5, Math.min(10, (wide - 2 * edge) / Math.max(1, shown.length) - 1)) * ratio;
  let episode = -1;
  shown.forEach((number, n) => {
    const row = rows[number], first = firstOf(row), left = x(n) - thick / 2;
    paint.fillStyle = color(hasTag(row, "undone") ? "--line" : "--bar");
    const bar = Math.max(1, Math.sqrt(first.seconds / most) * 22) * ratio;
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
}

// The numbers, without those beyond what can be the arguments of one call.
const sampled = (numbers) => [numbers.reduce((most, one) => Math.max(most, one), 0)];

function placeScrubber() {
  const n = shown.indexOf(at), row = rows[at];
  scrubber.max = byTime ? 1 : Math.max(0, shown.length - 1);
  scrubber.value = byTime ? placeOf(n) : n;
  const words = row ? `${label(firstOf(row))}, ${n + 1} of ${shown.length}` : "nothing to show";
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
