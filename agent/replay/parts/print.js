// On paper: all that is shown, one step after the other, each with its first frame.
const PRINTED = 400;

function fillPrint() {
  const box = byId("print");
  box.replaceChildren();
  for (const number of shown.slice(0, PRINTED)) {
    rows[number].entries.forEach((entry, k) => {
      if (!entry) return;
      const node = article(entry, k, false);
      const held = entry.frames.length && byId(`f-${entry.frames[0]}`);
      if (held && entry.kind !== "said") node.firstChild.after(make("img", "", { src: held.textContent, alt: "" }));
      box.append(node);
    });
  }
  if (shown.length > PRINTED) box.append(make("p", `The first ${PRINTED} of ${shown.length} are printed; search or filter to choose.`));
}

addEventListener("beforeprint", fillPrint);
addEventListener("afterprint", () => byId("print").replaceChildren());
