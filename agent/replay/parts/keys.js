// The keyboard: the same keys wherever the focus is, but where text is typed.
const KEYS = [
  ["← →, j k", "previous and next step", { ArrowLeft: () => step(-1), ArrowRight: () => step(1), k: () => step(-1), j: () => step(1) }],
  ["↑ ↓", "previous and next frame", { ArrowUp: () => showFrame(frame - 1), ArrowDown: () => showFrame(frame + 1) }],
  ["PgUp PgDn", "ten steps", { PageUp: () => step(-10), PageDown: () => step(10) }],
  ["Home End", "first and last step", { Home: () => step(-Infinity), End: () => step(Infinity) }],
  ["n N", "next and previous step with a mark", { n: () => toMark(1), N: () => toMark(-1) }],
  ["space", "play, and stop", { " ": () => play() }],
  ["/", "search in all text; Enter goes on, Escape ends it", { "/": () => search.focus() }],
  ["t", "timeline by time, or by step", { t: () => toggleByTime() }],
  ["u", "hide what was undone", { u: () => { hideUndone.checked = !hideUndone.checked; chooseAndShow(); } }],
  ...(two ? [["d", "show where the pictures differ", { d: () => toggleDifference() }]] : []),
  ...(boot.live ? [["f", "follow the newest step", { f: () => follow(true) }]] : []),
  ["?", "these keys", { "?": () => byId("help").showModal() }],
];
const ACTIONS = Object.assign({}, ...KEYS.map(([, , actions]) => actions));

// Whether the element with the focus has a use of its own for a key.
function usesKey(node, key) {
  if (node.matches("input[type=search], select")) return true;
  if (node.closest("dialog[open]")) return true;  // a closed one keeps the focus for a moment
  if (node.matches("button, a, summary, input[type=checkbox]")) return key === " " || key === "Enter";
  return node.id === "details" && ["ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End", " "].includes(key);
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || !Object.hasOwn(ACTIONS, event.key)) return;
  if (event.target instanceof Element && usesKey(event.target, event.key)) return;
  event.preventDefault();
  follow(false);
  const inList = event.target === list && { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (inList) step(inList);
  else ACTIONS[event.key]();
});

byId("keys").append(...KEYS.flatMap(([keys, what]) => [make("dt", keys), make("dd", what)]));
byId("help-button").onclick = () => byId("help").showModal();
