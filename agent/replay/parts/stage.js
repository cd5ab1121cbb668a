// The screen of each run: the chosen frame with the action on it, and the frames of the clip to choose from.
class Stage {
  constructor(k) {
    this.k = k;
    this.turn = 0;  // a frame that comes after another was asked for is dropped
    this.column = make("div", "", { className: "column" });
    if (two) this.column.append(make("h2", `${"AB"[k]}: ${runs[k].run}`));
    this.box = make("div", "", { className: "stage" });
    this.image = make("img", "", { alt: "" });
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("aria-hidden", "true");
    this.gap = make("p", "", { className: "gap", hidden: true });
    this.box.append(this.image, this.svg, this.gap);
    this.strip = make("div", "", { className: "strip" });
    this.column.append(this.box, this.strip);
    byId("stages").append(this.column);
    this.image.onload = () => { this.mark(); if (two) showDifference(); };
    this.image.onerror = () => this.tellGap("This frame cannot be shown: it is damaged.");
    new ResizeObserver(() => this.mark()).observe(this.image);
  }

  // Show frame number `at` of a row, and its strip when the row is another one.
  show(row, at, fresh) {
    this.row = row;
    this.absence = two && !row.entries[this.k] ? absence(this.k, rows.indexOf(row)) : "";
    this.entry = row.entries[this.k];
    this.at = at;
    const frames = this.entry ? this.entry.frames : [];
    if (fresh) this.fillStrip(frames);
    [...this.strip.children].forEach((node, n) => node.setAttribute("aria-current", n === at));
    this.load(frames[Math.min(at, frames.length - 1)]);
  }

  async load(name) {
    const turn = ++this.turn;
    const { url, why } = this.entry ? await frameOf(name) : { why: this.absence };
    if (turn !== this.turn) return;
    if (!url) return this.tellGap(why);
    this.gap.hidden = true;
    this.image.hidden = false;
    this.svg.removeAttribute("hidden");
    this.image.alt = `The screen at ${label(this.entry)}, frame ${this.at + 1} of ${this.entry.frames.length}`;
    if (this.image.src !== url) this.image.src = url;
    else this.mark();
  }

  tellGap(why) {
    this.image.hidden = true;
    this.svg.setAttribute("hidden", "");
    this.image.removeAttribute("src");
    this.gap.hidden = false;
    this.gap.textContent = why;
    if (two) showDifference();
  }

  fillStrip(frames) {
    this.strip.replaceChildren(...(frames.length < 2 ? [] : frames.map((name, n) => {
      const time = this.entry.times[n];
      const button = make("button", "", { type: "button" });
      button.setAttribute("aria-label", `Frame ${n + 1} of ${frames.length}`);
      const small = make("img", "", { alt: "", loading: "lazy" });
      frameOf(name).then(({ url }) => { if (url) small.src = url; else small.remove(); });
      button.append(small, make("span", Number.isFinite(time) ? `${time.toFixed(2)} s` : `${n + 1}`));
      button.onclick = () => showFrame(n);
      return button;
    })));
  }

  // The action is drawn on the frame it was decided on: the first of its clip, or the last one there was.
  mark() {
    const { entry } = this;
    if (!entry || this.image.hidden) return;
    const decided = this.at === 0;
    drawMarks(this.svg, decided ? entry.marks : {}, episodeOf(this.k, this.row).screen, this.image.clientWidth);
  }
}
