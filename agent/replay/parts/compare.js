// Two runs: where their rows differ, and the pixels in which their frames do.
const DIFFERS = {
  "only one": "Only one of the runs has this.", action: "The actions differ.", result: "The actions are the same, their results differ.",
  screen: "Action and result are the same, the screens differ.", "": "No difference in action, result or screen.",
};
let showsDifference = false;
const differenceBox = make("div", "", { className: "column", hidden: true });

function differenceWords(row) {
  const words = row.entries.every(Boolean) || row.differs ? DIFFERS[row.differs] : "This belongs to one run only.";
  return rows[boot.parting] === row ? `The runs part here. ${words}` : words;
}

// Of each run and episode: the row of the last thing in it, its last step, and its end.
let endings = [];

function findEndings() {
  endings = runs.map((_, k) => {
    const found = [];
    rows.forEach(({ entries, episode }, number) => {
      const entry = entries[k];
      if (!entry) return;
      const here = found[episode] = found[episode] || { last: number, step: 0, end: "" };
      if (entry.kind === "end" && !entry.tags.includes("subtask")) here.end = entry.title;
      else here.last = number;
      if (["step", "said"].includes(entry.kind) && !entry.tags.some((tag) => ["subtask", "undone"].includes(tag))) here.step = entry.step;
    });
    return found;
  });
}

// Why run k has nothing at a row.
function absence(k, number) {
  const here = endings[k][rows[number].episode], name = "AB"[k];
  if (!here) return `${name} has no such episode.`;
  if (number <= here.last) return `${name} has no such step.`;
  const after = here.step ? `after step ${here.step}` : "before its first step";
  return here.end ? `${name} ended ${after} (${here.end}).` : `${name} broke off ${after}.`;
}

// The runs whose last step in an episode is at a row after which the other goes on.
const lastsAt = (number) => !two ? [] : ["A", "B"].filter((_, k) => {
  const [own, other] = [endings[k], endings[1 - k]].map((of) => of[rows[number].episode]);
  return own && other && own.last === number && other.last > number;
});

function toggleDifference() {
  if (!two) return;
  showsDifference = !showsDifference;
  byId("difference").setAttribute("aria-pressed", showsDifference);
  differenceBox.hidden = !showsDifference;
  showDifference();
}

// Paint A in grey with what is different in B in pink, and say how much that is.
function showDifference() {
  if (!showsDifference) return;
  const [a, b] = stages.map((stage) => stage.image);
  const ready = [a, b].every((image) => !image.hidden && image.complete && image.naturalWidth);
  const words = make("h2", "Difference: one of the frames is not there.");
  differenceBox.replaceChildren(words);
  if (!ready) return;
  const wide = Math.max(a.naturalWidth, b.naturalWidth), high = Math.max(a.naturalHeight, b.naturalHeight);
  const [one, other] = [a, b].map((image) => pixelsOf(image, wide, high));
  const out = one.data;
  let count = 0;
  for (let p = 0; p < out.length; p += 4) {
    let same = true;
    for (let c = 0; c < 4; c += 1) if (out[p + c] !== other.data[p + c]) same = false;
    const grey = 128 + (out[p] + out[p + 1] + out[p + 2]) / 6;
    if (same) out[p] = out[p + 1] = out[p + 2] = grey;
    else { out[p] = 208; out[p + 1] = 16; out[p + 2] = 95; count += 1; }
    out[p + 3] = 255;
  }
  const canvas = make("canvas", "", { width: wide, height: high });
  canvas.setAttribute("role", "img");
  canvas.getContext("2d").putImageData(one, 0, 0);
  const share = 100 * count / (wide * high);
  words.textContent = count ? `Difference: ${count.toLocaleString("en")} pixels (${share.toFixed(share < 0.1 ? 3 : 1)} %)` : "Difference: none";
  canvas.setAttribute("aria-label", words.textContent);
  const box = make("div", "", { className: "stage" });
  box.append(canvas);
  differenceBox.append(box);
}

function pixelsOf(image, wide, high) {
  const paint = Object.assign(make("canvas"), { width: wide, height: high }).getContext("2d", { willReadFrequently: true });
  paint.drawImage(image, 0, 0);
  return paint.getImageData(0, 0, wide, high);
}

if (two) {
  byId("difference").hidden = false;
  byId("difference").onclick = toggleDifference;
  byId("to-parting").hidden = boot.parting === null;
  byId("to-parting").onclick = () => { search.value = filter.value = ""; choose(); go(boot.parting); };
  document.body.classList.add("two");
}
