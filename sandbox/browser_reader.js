// A selector engine that reads a page as a person would see it. Playwright runs it in a world of its own: it
// shares the document with the page's scripts, and nothing of what they have changed.
//
//   read N  -> an element that is in no document; its text is JSON: {text, refs: [number, ...], next, hidden, cut}.
//              Elements that can be used are numbered from N on; one keeps its number while it lives.
//   eK      -> the element with the number K
//   shown   -> the root itself, if a person could see it
(() => {
  const KEPT_SPACE = "\u00a0";  // of text whose spaces count
  const MAX_NODES = 200000, MAX_TEXT = 400000, MAX_NAME = 120;
  const numbers = new WeakMap(), elements = new Map();
  const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/gu;
  const SKIPPED = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "IFRAME", "FRAME", "OBJECT"]);
  const ROLES = new Set(["button", "link", "checkbox", "radio", "switch", "tab", "menuitem", "option", "combobox", "textbox", "slider"]);

  const clean = (text) => String(text).replace(INVISIBLE, "").replace(/\[(?=e\d)/g, "(");
  const short = (text) => {
    const line = clean(text).replace(/\s+/g, " ").trim();
    return line.length > MAX_NAME ? line.slice(0, MAX_NAME - 1) + "…" : line;
  };
  const quoted = (text) => JSON.stringify(short(text));

  // [red, green, blue, alpha] of a computed colour; null for a form that is not plain sRGB.
  const colour = (text) => {
    const found = /^rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)$/.exec(text);
    return found && [+found[1], +found[2], +found[3], found[4] === undefined ? 1 : +found[4]];
  };

  // Whether text in an element has (nearly) the colour of what is behind it.
  function isCamouflaged(element, style) {
    const ink = colour(style.webkitTextFillColor || style.color);
    if (!ink) return false;
    if (ink[3] < 0.08) return true;
    let paper = [255, 255, 255];
    for (let at = element; at; at = at.parentElement ?? at.getRootNode().host) {
      const behind = getComputedStyle(at);
      if (behind.backgroundImage !== "none") return false;
      const found = colour(behind.backgroundColor);
      if (!found || (found[3] > 0 && found[3] < 0.9)) return false;
      if (found[3] >= 0.9) { paper = found; break; }
    }
    const share = ink[3];
    return [0, 1, 2].every((i) => Math.abs(ink[i] - paper[i]) * share < 24);
  }

  const leavesNothing = (rect) =>
    rect.width < 1 || rect.height < 1 || rect.right + scrollX <= 0 || rect.bottom + scrollY <= 0;

  // Whether nothing that is in an element can be seen, whatever it is.
  function hides(element, style) {
    if (style.contentVisibility === "hidden" || style.display === "none" || +style.opacity < 0.05 || parseFloat(style.fontSize) < 2) return true;
    if (style.clipPath.startsWith("inset(5") || style.clipPath.startsWith("inset(100")) return true;
    if (/^rect\((\d)px, \1px, \1px, \1px\)$/.test(style.clip)) return true;
    if (style.overflowX === "visible" || style.display === "contents") return false;
    const rect = element.getBoundingClientRect();
    return element !== document.body && element !== document.documentElement && (rect.width <= 1 || rect.height <= 1);
  }

  function isShown(element) {
    for (let at = element; at; at = at.parentElement ?? at.getRootNode().host) {
      if (hides(at, getComputedStyle(at))) return false;
    }
    if (element.tagName === "IFRAME" && (element.clientWidth < 2 || element.clientHeight < 2)) return false;
    return getComputedStyle(element).visibility === "visible" && !leavesNothing(element.getBoundingClientRect());
  }

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

  function describe(element, kind, number, inner) {
    const parts = [`e${number}`, kind];
    const name = short(inner) || short(element.tagName === "INPUT" && kind === "button" ? element.value : labelOf(element));
    if (name) parts.push(JSON.stringify(name));
    if (kind === "link") parts.push("-> " + short(element.getAttribute("href")));
    if (kind === "textbox") {
      if (element.type === "password") parts.push(element.value ? "(filled)" : "(empty)");
      else parts.push("= " + quoted(element.value ?? element.innerText));
      if (element.type && !["text", "textarea"].includes(element.type)) parts.push(`(${element.type})`);
    }
    if (kind === "file") parts.push(element.files.length ? "= " + [...element.files].map((f) => quoted(f.name)).join(", ") : "(no file)");
    if (kind === "select") {
      const options = [...element.options].slice(0, 50).map((o) => (o.selected ? "*" : "") + quoted(o.label));
      parts.push("of " + options.join(", ") + (element.options.length > 50 ? `, and ${element.options.length - 50} more` : ""));
    }
    const checked = element.checked ?? (element.getAttribute("aria-checked") === "true");
    if (["checkbox", "radio", "switch"].includes(kind)) parts.push(checked ? "(checked)" : "(not checked)");
    if (element.disabled) parts.push("(disabled)");
    return `[${parts.join(" ")}]`;
  }

  function read(first) {
    let nodes = 0, hidden = 0, next = first, cut = false, size = 0;
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

    function textOf(node, state) {
      const text = clean(node.data);
      if (!text.trim()) return state.pre ? text : " ";
      const range = document.createRange();
      range.selectNodeContents(node);
      const seen = [...range.getClientRects()].some((rect) => !leavesNothing(rect));
      if (state.hidden || !state.visible || !seen || state.camouflaged()) {
        hidden++;
        return "";
      }
      return state.pre ? text.replace(/ /g, KEPT_SPACE) : text.replace(/\s+/g, " ");
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

    function walk(node, state) {
      if (cut || ++nodes > MAX_NODES || size > MAX_TEXT) { cut = true; return ""; }
      if (node.nodeType === Node.TEXT_NODE) {
        const text = textOf(node, state);
        size += text.length;
        return text;
      }
      if (node.nodeType !== Node.ELEMENT_NODE || SKIPPED.has(node.tagName)) return "";
      const style = getComputedStyle(node);
      const inside = {
        hidden: state.hidden || hides(node, style),
        visible: style.visibility === "visible",
        pre: style.whiteSpaceCollapse === "preserve" || style.whiteSpace.startsWith("pre"),
        points: style.cursor === "pointer",
        camouflaged: (() => { let known; return () => (known ??= isCamouflaged(node, style)); })(),
      };
      if (inside.hidden && style.display === "none") {
        if (node.textContent.trim()) hidden++;
        return "";
      }
      const kind = kindOf(node, style, state.points);
      const isUsable = kind && !inside.hidden && inside.visible
        && (kind === "file" || !leavesNothing(node.getBoundingClientRect()) || node.getClientRects().length > 1);
      let text = "";
      if (!["SELECT", "TEXTAREA", "INPUT"].includes(node.tagName)) {
        for (const child of childrenOf(node)) text += walk(child, inside);
      }
      if (node.tagName === "IMG" && node.alt && !inside.hidden && isShown(node)) text = ` (image: ${short(node.alt)}) `;
      if (isUsable) {
        const holds = /\[e\d/.test(text);  // other things to use, which would be lost in a name
        text = ` ${describe(node, kind, numberOf(node), holds ? "" : text)} ` + (holds ? text : "");
        size += 40;
      }
      if (node.tagName === "BR") return "\n";
      if (/^H[1-6]$/.test(node.tagName) && text.trim()) text = "#".repeat(+node.tagName[1]) + " " + text.trim();
      if (node.tagName === "LI" && text.trim()) text = "- " + text.trim();
      if (["TD", "TH"].includes(node.tagName)) return text.trim() + " | ";
      return /^(inline|contents|ruby|table-column)/.test(style.display) ? text : `\n${text}\n`;
    }

    const state = { hidden: false, visible: true, pre: false, points: false, camouflaged: () => false };
    const whole = document.documentElement ? walk(document.documentElement, state) : "";
    const text = whole.split("\n").map((line) => line.replace(/ +/g, " ").replace(/^ | $/g, "").replaceAll(KEPT_SPACE, " "))
      .filter((line) => line.trim()).join("\n");
    return { text, refs, next, hidden, cut, type: document.contentType };
  }

  return {
    query(root, selector) { return this.queryAll(root, selector)[0] ?? null; },
    queryAll(root, selector) {
      const [word, first] = selector.split(" ");
      if (word === "read") {
        const report = document.createElement("div");
        report.textContent = JSON.stringify(read(+first));
        return [report];
      }
      if (word === "shown") return isShown(root) ? [root] : [];
      const element = elements.get(+word.slice(1))?.deref();
      return element?.isConnected ? [element] : [];
    },
  };
})()
