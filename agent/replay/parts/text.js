// Long texts: in blocks that the browser lays out only when they come into view, the first at once.
const BLOCK_LINES = 200, BLOCK_CHARS = 20000;

// Cut a text into pieces of at most so many lines and characters.
function* blocksOf(text) {
  let start = 0;
  while (start < text.length) {
    let end = start, lines = 0;
    while (lines < BLOCK_LINES && end < text.length && end - start < BLOCK_CHARS) {
      const next = text.indexOf("\n", end);
      end = next < 0 ? text.length : next + 1;
      lines += 1;
    }
    if (end - start > 2 * BLOCK_CHARS) {
      const half = /[\ud800-\udbff]/.test(text[start + BLOCK_CHARS - 1]);  // of a character of two
      end = start + BLOCK_CHARS - half;
    }
    yield text.slice(start, end);
    start = end;
  }
}

function lineCount(text) {
  let count = 1;
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) count += 1;
  return count;
}

const DIFFS = new Set(["edit", "workspace", "workspace since then", "changed"]);
const CODE = new Set(["call", "ran instead", "result", "command", "output", "network", "rule added", "patch", ...DIFFS]);

function addBlock(box, piece, isDiff) {
  const block = make("div", "", { className: box.firstChild ? "block" : "" });
  if (!isDiff) block.textContent = piece;
  else {
    for (const line of piece.split(/(?<=\n)/)) {
      const kind = { "+": "added", "-": "removed", "@": "place" }[line[0]];
      block.append(kind ? make("span", line, { className: kind }) : line);
    }
  }
  box.append(block);
}

// A text under its name. What is searched for is shown, however far down it stands.
function noteNodes(name, text, wanted) {
  const box = make("div", "", { className: CODE.has(name) ? "text code" : "text" });
  const isDiff = DIFFS.has(name), pieces = blocksOf(text);
  const addNext = () => {
    const { value, done } = pieces.next();
    if (!done) addBlock(box, value, isDiff);
    return done ? 0 : value.length;
  };
  let shown = addNext();
  const found = wanted ? text.toLowerCase().indexOf(wanted) : -1;
  while (found >= 0 && shown < Math.min(text.length, found + wanted.length)) shown += addNext();
  const nodes = [make("h3", name), box];
  if (shown < text.length) {
    const many = lineCount(text), all = many > 2 ? `${many.toLocaleString("en")} lines` : `${text.length.toLocaleString("en")} characters`;
    const more = make("button", `Show all ${all}`, { type: "button", className: "more" });
    more.onclick = () => { while (addNext()); more.remove(); highlight(); };
    nodes.push(more);
  }
  return nodes;
}
