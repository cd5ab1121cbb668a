// What happened at a row: every text of its entries, the plan of then, what it cost.
const details = byId("details");

function showDetails() {
  const row = rows[at];
  details.classList.toggle("two", two);
  const nodes = row.entries.map((entry, k) => article(entry, k, true));
  if (two) nodes.unshift(make("p", differenceWords(row), { className: "difference" }));
  details.replaceChildren(...nodes, costTable());
  details.scrollTop = 0;
  highlight();
}

// One entry in full. whole: with the plan as it stood, even where it did not change.
function article(entry, k, withPlan) {
  const node = make("article");
  if (!entry) {
    node.append(make("h2", two ? absence(k, at) : ""));
    return node;
  }
  const title = two ? `${"AB"[k]}: ${label(entry)}` : label(entry);
  node.append(make("h2", title, { className: "what" }));
  node.classList.toggle("undone", entry.tags.includes("undone"));
  const time = entry.t ? [new Date(entry.t * 1000).toLocaleTimeString("en-GB")] : [];
  node.append(make("p", [...time, ...entry.facts].join(" · "), { className: "facts" }));
  if (entry.tags.length) {
    const tags = make("ul", "", { className: "tags" });
    tags.append(...entry.tags.map((tag) => make("li", TAGS[tag])));
    node.append(tags);
  }
  for (const [name, text] of entry.notes) {
    if (name !== "plan") node.append(...noteNodes(name, text, wanted()));
    else node.append(make("h3", `plan: ${text}`), planNode(entry.plan));
  }
  if (entry.image && withPlan) node.append(make("h3", "picture"), pictureNode(entry.image));
  if (withPlan && !entry.plan.length) node.append(...planBefore(k));
  return node;
}

function planNode(plan) {
  const node = make("ul", "", { className: "plan" });
  const signs = { done: "✓", doing: "▶", open: "○", dropped: "✗" };
  node.append(...plan.map(([status, title]) => make("li", `${signs[status]} ${title}`, { className: status })));
  return node;
}

function planBefore(k) {
  for (let n = at - 1; n >= 0 && rows[n].episode === rows[at].episode; n -= 1) {
    const entry = rows[n].entries[k];
    if (entry && entry.plan.length && !entry.tags.includes("undone")) {
      const fold = make("details");
      fold.append(make("summary", "The plan at this time"), planNode(entry.plan));
      return [fold];
    }
  }
  return [];
}

function pictureNode(name) {
  const image = make("img", "", { className: "picture", alt: "The picture that the call brought" });
  const box = make("div");
  box.append(image);
  frameOf(name).then(({ url, why }) => {
    if (url) image.src = url;
    else image.replaceWith(make("p", why, { className: "gap" }));
  });
  return box;
}
