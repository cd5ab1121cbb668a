// A selector engine that reads a page as a person would see it. Playwright runs it in a world of its own: it
// shares the document with the page's scripts, and nothing of what they have changed.
//
//   read N MS [VIEW]  -> {text, refs: [number, ...], next, hidden, rest, type}. Elements that can be used are numbered
//                        from N on; one keeps its number while it lives. It takes about MS milliseconds; `rest` is how
//                        many characters were not got to.
//   shown [VIEW]      -> the part of the root, a frame's holder, that a person could see; nothing if there is none
//   eK                -> the element with the number K
//
// What is no element of the page comes as the text of one that is in no document, in JSON. VIEW is the part of the frame
// that shows, as four numbers. Elements stand in the text between U+FDD0 and U+FDD1, which are in no text of a page.
(sight) => {
  const KEPT_SPACE = "\u00a0";  // of text whose spaces count
  const OPEN = "\ufdd0", CLOSE = "\ufdd1";
  const MAX_DEPTH = 1500, MAX_TEXT = 400000, MAX_NAME = 120;
  const numbers = new WeakMap(), elements = new Map();
  const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufdd0-\ufdef\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffc\ufffe\uffff\u{e0000}-\u{e0fff}]/gu;
  const SKIPPED = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "IFRAME", "FRAME", "OBJECT"]);
  const ROLES = new Set(["button", "link", "checkbox", "radio", "switch", "tab", "menuitem", "option", "combobox", "textbox", "slider"]);

  const clean = (text) => String(text).replace(INVISIBLE, "");
  const short = (text) => {
    const line = clean(text).replace(/\s+/g, " ").trim();
    return line.length > MAX_NAME ? line.slice(0, MAX_NAME - 1) + "…" : line;
  };
  const quoted = (text) => JSON.stringify(short(text));

  function labelOf(element) {
    const by = (element.getAttribute("aria-labelledby") ?? "").split(/\s+/).filter(Boolean)
      .map((id) => element.getRootNode().getElementById?.(id)?.textContent ?? "").join(" ");
    const labels = [...(element.labels ?? [])].map((label) => label.innerText).join(" ");
    return by.trim() || element.getAttribute("aria-label") || labels.trim() || element.getAttribute("placeholder")
      || element.getAttribute("title") || element.getAttribute("name") || "";
  }

  // What kind of thing to use an element is; "" for one that is only looked at.
  function kindOf(element, style, parentPoints) {
    const role = element.getAttribute("role");
    switch (element.tagName) {
      case "A": if (element.hasAttribute("href")) return "link"; break;
      case "BUTTON": case "SUMMARY": return "button";
      case "TEXTAREA": return "textbox";
      case "SELECT": return "select";
      case "INPUT":
        if (["button", "submit", "reset", "image"].includes(element.type)) return "button";
        if (["checkbox", "radio", "file"].includes(element.type)) return element.type;
        return element.type === "hidden" ? "" : "textbox";
    }
    if (element.isContentEditable && !element.parentElement?.isContentEditable) return "textbox";
    if (ROLES.has(role)) return role;
    return element.hasAttribute("onclick") || (style.cursor === "pointer" && !parentPoints) ? "clickable" : "";
  }

  function describe(element, kind, number, inner, isWritable) {
    const parts = [`e${number}`, kind];
    const name = kind !== "textbox" && short(inner) || short(element.tagName === "INPUT" && kind === "button" ? element.value : labelOf(element));
    if (name) parts.push(JSON.stringify(name));
    if (kind === "link") parts.push("-> " + short(element.getAttribute("href") ?? "").replace(/[\s"[\]]/g, encodeURIComponent));
    if (kind === "textbox") {
      if (element.type === "password") parts.push(element.value ? "(filled)" : "(empty)");
      else if (element.matches("input, textarea")) parts.push(isWritable() ? "= " + quoted(element.value) : "(unreadable)");
      else parts.push("= " + quoted(inner));
      if (element.tagName === "INPUT" && element.type !== "text") parts.push(`(${element.type})`);
    }
    if (kind === "file") parts.push(element.files.length ? "= " + [...element.files].map((f) => quoted(f.name)).join(", ") : "(no file)");
    if (kind === "select") {
      const options = [...element.options].slice(0, 50).map((o) => (o.selected ? "*" : "") + quoted(o.label));
      parts.push("of " + options.join(", ") + (element.options.length > 50 ? `, and ${element.options.length - 50} more` : ""));
    }
    const checked = element.checked ?? (element.getAttribute("aria-checked") === "true");
    if (["checkbox", "radio", "switch"].includes(kind)) parts.push(checked ? "(checked)" : "(not checked)");
    if (element.disabled) parts.push("(disabled)");
    return OPEN + parts.join(" ") + CLOSE;
  }

  function read(first, budget, view) {
    const end = performance.now() + budget;
    let hidden = 0, next = first, cut = false, size = 0, passed = 0, nodes = 0;
    const refs = [];

    function numberOf(element) {
      let number = numbers.get(element);
      if (number === undefined) {
        number = next++;
        numbers.set(element, number);
        elements.set(number, new WeakRef(element));
      }
      refs.push(number);
      return number;
    }

    function textOf(node, seen, isPre) {
      const data = node.data.slice(0, MAX_TEXT - size + 1), text = clean(data);
      passed += data.length;
      if (!text.trim()) return isPre ? text : " ";
      const shown = clean(sight.text(node, data, text, seen));
      if (shown.length < text.length) hidden++;
      return isPre ? shown.replace(/ /g, KEPT_SPACE) : shown.replace(/\s+/g, " ");
    }

    function childrenOf(node) {
      if (node.tagName === "DETAILS" && !node.open) {
        return [...node.children].filter((child) => child.tagName === "SUMMARY").slice(0, 1);
      }
      if (node.tagName === "SLOT") {
        const assigned = node.assignedNodes();
        if (assigned.length) return assigned;
      }
      return (node.shadowRoot ?? node).childNodes;
    }

    function walk(node, outer, isPre, points, depth) {
      if (cut || size > MAX_TEXT || depth > MAX_DEPTH || (++nodes % 32 === 0 && performance.now() > end)) {
        cut = true;
        return "";
      }
      if (node.nodeType === Node.TEXT_NODE) {
        const text = textOf(node, outer, isPre);
        size += text.length;
        return text;
      }
      if (node.nodeType !== Node.ELEMENT_NODE) return "";
      const style = SKIPPED.has(node.tagName) ? null : getComputedStyle(node);
      if (style === null || style.display === "none") {
        const within = node.textContent;
        passed += within.length;
        if (style !== null && within.trim()) hidden++;
        return "";
      }
      const inner = sight.enter(node, style, outer);
      const kind = kindOf(node, style, points);
      const shows = () => style.visibility === "visible" && sight.shows(node, inner);
      const isUsable = kind && (kind === "file" ? !inner.hidden && style.visibility === "visible" : shows());
      let text = "";
      if (!["SELECT", "TEXTAREA", "INPUT"].includes(node.tagName)) {
        const keeps = style.whiteSpaceCollapse === "preserve" || style.whiteSpace.startsWith("pre");
        for (const child of childrenOf(node)) {
          if (cut) break;
          text += walk(child, inner, keeps, style.cursor === "pointer", depth + 1);
        }
      }
      if (node.tagName === "IMG" && node.alt && shows()) text = ` (image: ${short(node.alt)}) `;
      if (isUsable) {
        const holds = text.includes(OPEN);  // other things to use, which would be lost in a name
        text = ` ${describe(node, kind, numberOf(node), holds ? "" : text.slice(0, 2000), () => sight.isWritable(node, inner))} ` + (holds ? text : "");
        size += 40;
      }
      if (node.tagName === "BR") return "\n";
      if (/^H[1-6]$/.test(node.tagName) && text.trim()) text = "#".repeat(+node.tagName[1]) + " " + text.trim();
      if (node.tagName === "LI" && text.trim()) text = "- " + text.trim();
      if (["TD", "TH"].includes(node.tagName)) return text.trim() + " | ";
      return /^(inline|contents|ruby|table-column)/.test(style.display) ? text : `\n${text}\n`;
    }

    const top = document.documentElement;
    const whole = top ? walk(top, sight.start(view, end), false, false, 0) : "";
    const text = whole.split("\n").map((line) => line.replace(/ +/g, " ").replace(/^ | $/g, "").replaceAll(KEPT_SPACE, " "))
      .filter((line) => line.trim()).join("\n");
    const rest = cut || performance.now() > end ? Math.max(1, top.textContent.length - passed) : 0;
    return {text, refs, next, hidden, rest, type: document.contentType};
  }

  const report = (what) => {
    const element = document.createElement("div");
    element.textContent = JSON.stringify(what);
    return [element];
  };

  return {
    query(root, selector) { return this.queryAll(root, selector)[0] ?? null; },
    queryAll(root, selector) {
      const [word, ...rest] = selector.split(" "), view = rest.slice(-4).map(Number);
      if (word === "read") return report(read(+rest[0], +rest[1], rest.length > 4 ? view : null));
      if (word === "shown") {
        const seen = sight.follow(root, rest.length === 4 ? view : null);
        const part = sight.box(root, seen.own);
        const isShown = !seen.hidden && seen.style.visibility === "visible" && !sight.isSlit(part) && sight.shows(root, seen);
        return isShown ? report(part) : [];
      }
      const element = elements.get(+word.slice(1))?.deref();
      return element?.isConnected ? [element] : [];
    },
  };
}
