// Runs in every page before its own scripts: finds targets for experts and reads labels for training.
// Boxes are [x0, y0, x1, y1] in CSS pixels of the viewport; `labels` gives device pixels.
(() => {
  if (window.__pf) return;
  const [REGION_WIDTH, REGION_HEIGHT, SCALE] = window.__pfView;
  const PAGE_CHROME = '#sync-task-cover,#reward-display,#click-canvas';
  let state = 1, drawn = 0, marked = null;

  // A private generator (mulberry32), so that a page's own seeded Math.random is left alone.
  const random = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());

  const intersect = (a, b) => {
    const box = [Math.max(a[0], b[0]), Math.max(a[1], b[1]), Math.min(a[2], b[2]), Math.min(a[3], b[3])];
    return box[2] - box[0] >= 1 && box[3] - box[1] >= 1 ? box : null;
  };
  const edges = (r) => [r.left, r.top, r.right, r.bottom];

  // What an element's content is clipped to: the region and every scrolling or hiding ancestor.
  let clips = new Map();
  const clipOf = (el) => {
    if (!el || el === document.body || el === document.documentElement) return [0, 0, REGION_WIDTH, REGION_HEIGHT];
    if (clips.has(el)) return clips.get(el);
    let clip = clipOf(el.parentElement);
    const style = getComputedStyle(el);
    if (style.display === 'none' || style.visibility === 'hidden' || +style.opacity < 0.05) clip = null;
    else if (clip && style.overflow !== 'visible' && style.display !== 'inline')
      clip = intersect(clip, edges(el.getBoundingClientRect()));
    clips.set(el, clip);
    return clip;
  };
  const visible = (el) => {
    const style = getComputedStyle(el);
    return style.visibility !== 'hidden' && style.display !== 'none' && +style.opacity > 0.05;
  };
  const rectsOf = (el) => {
    if (!visible(el)) return [];
    const clip = clipOf(el.parentElement);
    if (!clip) return [];
    const style = getComputedStyle(el);
    const whole = el.getBoundingClientRect();
    const rects = style.display === 'inline' && !el.firstElementChild ? [...el.getClientRects()] : [whole];
    return rects.map((r) => intersect(edges(r), clip)).filter((r) => r);
  };
  const area = (b) => (b[2] - b[0]) * (b[3] - b[1]);
  const related = (el, hit) => {
    if (!hit) return false;
    if (hit === el || el.contains(hit)) return true;
    const label = hit.closest('label');
    return !!label && (label.contains(el) || label.control === el);
  };
  const hits = (el, x, y) => related(el, document.elementFromPoint(x, y));

  // A small box in the middle of what other things leave uncovered of a box; null where nothing is.
  const middleOfOpenPart = (el, b) => {
    const open = [];
    for (let i = 0; i < 12; i++)
      for (let j = 0; j < 12; j++) {
        const x = b[0] + ((i + 0.5) / 12) * (b[2] - b[0]), y = b[1] + ((j + 0.5) / 12) * (b[3] - b[1]);
        if (hits(el, x, y)) open.push([x, y]);
      }
    if (!open.length) return null;
    const mean = [0, 1].map((k) => open.reduce((sum, point) => sum + point[k], 0) / open.length);
    const far = (point) => Math.hypot(point[0] - mean[0], point[1] - mean[1]);
    const [x, y] = open.reduce((best, point) => (far(point) < far(best) ? point : best));
    return {box: [Math.max(b[0], x - 1), Math.max(b[1], y - 1), Math.min(b[2], x + 1), Math.min(b[3], y + 1)], x, y};
  };

  // The visible part of an element and a point a person might click: near the centre, never outside.
  const target = (what, inset = 0) => {
    clips = new Map();
    const el = what?.piece ? what.piece : what;
    if (!el) return null;
    const rects = rectsOf(el).sort((a, b) => area(b) - area(a));
    if (what.piece)
      for (const b of rects) [b[0], b[2]] = [b[0] + (b[2] - b[0]) * what.from, b[0] + (b[2] - b[0]) * what.to];
    for (const b of rects) {
      const w = b[2] - b[0], h = b[3] - b[1], cx = (b[0] + b[2]) / 2, cy = (b[1] + b[3]) / 2;
      if (!hits(el, cx, cy)) {
        const open = middleOfOpenPart(el, b);
        if (open) return open;
        continue;
      }
      for (let i = 0; i < 12; i++) {
        const spread = i < 8 ? 0.13 : 0;
        const x = Math.min(Math.max(cx + normal() * spread * w, b[0] + Math.min(1 + inset, w / 2)), b[2] - Math.min(1 + inset, w / 2));
        const y = Math.min(Math.max(cy + normal() * spread * h, b[1] + Math.min(1 + inset, h / 2)), b[3] - Math.min(1 + inset, h / 2));
        if (hits(el, x, y)) return {box: b, x, y};
      }
    }
    return null;
  };

  const clean = (s) => (s || '').replace(/\s+/g, ' ').trim();
  const all = (css, root = document) => [...root.querySelectorAll(css)];
  const byText = (css, text) => all(css).filter((el) => clean(el.innerText ?? el.textContent) === text);

  // ---- labels -------------------------------------------------------------------------------------
  const KINDS = [
    ['input[type=checkbox]', 'checkbox'], ['input[type=radio]', 'radio'],
    ['input[type=button],input[type=submit],input[type=reset],button,[role=button],.ui-button', 'button'],
    ['input[type=range],.ui-slider-handle', 'slider'], ['input', 'input'], ['textarea', 'input'], ['select', 'select'],
    ['[role=tab],.ui-tabs-anchor', 'tab'], ['a,.alink', 'link'], ['option', 'option'],
    ['[role=menuitem],.ui-menu-item', 'item'], ['[data-pf]', ''], ['label', 'label'],
    ['svg circle,svg rect,svg polygon,svg ellipse,svg path', 'shape'], ['img,svg', 'icon'],
  ];
  const kindOf = (el) => {
    for (const [css, kind] of KINDS) if (el.matches(css)) return kind || el.dataset.pf;
    return getComputedStyle(el).cursor === 'pointer' &&
      (!el.parentElement || getComputedStyle(el.parentElement).cursor !== 'pointer') ? 'clickable' : null;
  };
  const nameOf = (el, kind) => {
    if (el.dataset && el.dataset.name) return el.dataset.name;
    if (kind === 'checkbox' || kind === 'radio' || kind === 'input' || kind === 'select') {
      const label = el.labels && el.labels[0];
      if (label) return clean(label.textContent);
      if (el.placeholder) return el.placeholder;
      const near = kind === 'input' || kind === 'select' ? el.previousSibling : el.nextSibling;
      const text = near ? clean(near.textContent) : '';
      if (text) return text;
      return kind === 'input' ? clean(el.value) : '';
    }
    if (el.tagName === 'INPUT') return clean(el.value);
    return clean(el.innerText ?? el.textContent) || el.getAttribute('aria-label') || el.title || '';
  };

  const canvas = document.createElement('canvas').getContext('2d');
  const fieldText = (el, style) => {
    // Text inside form fields is not in the document, so it is measured.
    let text = el.tagName === 'SELECT' ? (el.size > 1 || el.multiple ? '' : clean(el.selectedOptions[0]?.text)) : el.value || el.placeholder || '';
    if (el.type === 'password' && el.value) text = '•'.repeat(el.value.length);
    if (!text || /^(checkbox|radio|range|color|file|date|time)$/.test(el.type)) return [];
    const px = (name) => parseFloat(style[name]) || 0;
    canvas.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    canvas.letterSpacing = style.letterSpacing === 'normal' ? '0px' : style.letterSpacing;
    const r = el.getBoundingClientRect();
    const left = r.left + px('borderLeftWidth') + px('paddingLeft');
    const right = r.right - px('borderRightWidth') - px('paddingRight');
    const width = canvas.measureText(text).width;
    const button = /^(button|submit|reset)$/.test(el.type);
    const out = [];
    if (el.tagName === 'TEXTAREA') {
      let y = r.top + px('borderTopWidth') + px('paddingTop') - el.scrollTop;
      const height = style.lineHeight === 'normal' ? px('fontSize') * 1.15 : px('lineHeight');
      for (const paragraph of text.split('\n')) {
        let line = '';
        const flush = () => {
          [...line].forEach((c, i) => {
            const before = canvas.measureText(line.slice(0, i)).width, w = canvas.measureText(c).width;
            if (c.trim()) out.push([c, left + before + w / 2, y + height / 2]);
          });
          y += height;
          line = '';
        };
        for (const word of paragraph.split(/(?<= )/)) {
          if (line && canvas.measureText((line + word).trimEnd()).width > right - left) flush();
          line += word;
        }
        flush();
      }
    } else {
      const start = button ? (r.left + r.right - width) / 2 : style.textAlign === 'right' ? right - width
        : style.textAlign === 'center' ? (left + right - width) / 2 : left + (el.tagName === 'SELECT' ? 4 : 0) - el.scrollLeft;
      const middle = (r.top + r.bottom + px('borderTopWidth') - px('borderBottomWidth') + px('paddingTop') - px('paddingBottom')) / 2;
      [...text].forEach((c, i) => {
        const before = canvas.measureText(text.slice(0, i)).width, w = canvas.measureText(c).width;
        if (c.trim()) out.push([c, start + before + w / 2, middle]);
      });
    }
    return out.filter(([, x, y]) => x > left - 1 && x < right + 1 && y > r.top && y < r.bottom);
  };

  const labels = () => {
    clips = new Map();
    const widgets = [], chars = [], xy = [];
    const cover = document.querySelector('#sync-task-cover');
    const push = (text, kind, b) => widgets.push([text.slice(0, 80), kind,
      Math.round(b[0] * SCALE), Math.round(b[1] * SCALE), Math.round(b[2] * SCALE), Math.round(b[3] * SCALE)]);
    const letter = (c, x, y) => { chars.push(c); xy.push(Math.round(x * SCALE), Math.round(y * SCALE)); };
    const kinds = new Map();
    for (const el of document.body ? all('body *,#pf-around *') : []) {
      if (el.closest(PAGE_CHROME) && el !== cover) continue;
      if (/^(SCRIPT|STYLE|BR|OPTGROUP)$/.test(el.tagName)) continue;
      const kind = kindOf(el);
      if (!kind) continue;
      kinds.set(el, kind);
      if (kind === 'label' && el.control) continue;
      for (const b of rectsOf(el)) {
        const x = (b[0] + b[2]) / 2, y = (b[1] + b[3]) / 2;
        const hit = document.elementFromPoint(x, y);
        if (!hit || !(hit === el || el.contains(hit) || (el.tagName === 'OPTION' && hit.tagName === 'SELECT'))) continue;
        push(nameOf(el, kind), kind, b);
        if (/^(INPUT|TEXTAREA|SELECT)$/.test(el.tagName))
          for (const [c, cx, cy] of fieldText(el, getComputedStyle(el)))
            if (cx > b[0] && cx < b[2] && cy > b[1] && cy < b[3]) letter(c, cx, cy);
      }
    }
    const range = document.createRange();
    const texts = [document.body, ...all('#pf-around')].flatMap((root) => {
      const found = [], walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) found.push(walker.currentNode);
      return found;
    });
    for (const node of texts) {
      const text = node.data, parent = node.parentElement;
      if (!text.trim() || !parent || /^(SCRIPT|STYLE|TEXTAREA|NOSCRIPT)$/.test(parent.tagName)) continue;
      if (parent.closest('#reward-display')) continue;
      if (parent.tagName === 'OPTION' && parent.closest('select') && !(parent.closest('select').size > 1 || parent.closest('select').multiple)) continue;
      const clip = clipOf(parent);
      if (!clip) continue;
      range.selectNodeContents(node);
      const whole = range.getBoundingClientRect();
      if (!intersect(edges(whole), clip)) continue;
      // Lines of this text node: characters that share a top edge.
      let line = null;
      const flush = () => {
        if (!line) return;
        const b = intersect([line.x0, line.y0, line.x1, line.y1], clip);
        if (b) {
          const shown = (x) => {
            const hit = document.elementFromPoint(x, (b[1] + b[3]) / 2);
            return !!hit && (hit === parent || parent.contains(hit) || hit.contains(parent) || related(parent, hit));
          };
          const open = line.words.filter((word) => shown((Math.max(word.x0, b[0]) + Math.min(word.x1, b[2])) / 2));
          const whole = open.length === line.words.length;
          if (open.length) {
            for (const [c, x, y] of line.letters)
              if (x > clip[0] && x < clip[2] && y > clip[1] && y < clip[3] &&
                (whole || open.some((word) => x > word.x0 && x < word.x1))) letter(c, x, y);
            let el = parent;
            while (el && !kinds.has(el) && el !== document.body) el = el.parentElement;
            const words = clean(line.text);
            if (words && (!kinds.has(el) || kinds.get(el) === 'label') && line.y0 > clip[1] - 2 && line.y1 < clip[3] + 2) {
              if (whole) push(words, 'text', b);
              if (line.words.length > 1)
                for (const word of open) {
                  const box = intersect([word.x0, line.y0, word.x1, line.y1], clip);
                  if (box) push(word.text, 'word', box);
                }
            }
          }
        }
        line = null;
      };
      for (let i = 0; i < text.length; i++) {
        const c = text[i];
        if (c >= '\ud800' && c <= '\udfff') continue;
        range.setStart(node, i);
        range.setEnd(node, i + 1);
        const r = range.getBoundingClientRect();
        if (!r.width || !r.height) { if (line) line.text += ' '; continue; }
        if (line && Math.abs(r.top - line.y0) > r.height / 2) flush();
        line ||= {x0: r.left, x1: r.right, y0: r.top, y1: r.bottom, text: '', letters: [], words: []};
        line.x0 = Math.min(line.x0, r.left);
        line.x1 = Math.max(line.x1, r.right);
        if (c.trim()) {
          if (!line.text.trim() || /\s$/.test(line.text)) line.words.push({text: '', x0: r.left, x1: r.right});
          const word = line.words[line.words.length - 1];
          word.text += c;
          word.x0 = Math.min(word.x0, r.left);
          word.x1 = Math.max(word.x1, r.right);
        }
        line.text += c;
        if (c.trim()) line.letters.push([c, (r.left + r.right) / 2, (r.top + r.bottom) / 2]);
      }
      flush();
    }
    return {widgets, chars, xy};
  };

  // Let the page reach its resting state: animations jump to their end, timers of effects run out.
  const settle = async (limitMs = 1500) => {
    const until = performance.now() + limitMs;
    for (let i = 0; i < 2; i++) await new Promise((r) => { const c = new MessageChannel(); c.port1.onmessage = r; c.port2.postMessage(0); });
    for (;;) {
      for (const a of document.getAnimations()) {
        const end = a.effect?.getComputedTiming().endTime;
        if (end !== Infinity) a.finish();
      }
      const busy = window.jQuery && jQuery.timers && jQuery.timers.length;
      if (!busy || performance.now() > until) return;
      await new Promise((r) => setTimeout(r, 5));
    }
  };

  // ---- MiniWoB++ --------------------------------------------------------------------------------
  // Start an episode of the page that is shown; gives its instruction (text, or an object with fields).
  const start = async (seed, css) => {
    if (document.readyState !== 'complete') await new Promise((r) => addEventListener('load', r));
    while (!window.core || !core.cover_div) await new Promise((r) => setTimeout(r, 1));
    let style = document.getElementById('__pf-style');
    if (!style) {
      // Pictures that a style sheet names are fetched first, so that the first frame has them.
      const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules].map((rule) => [sheet.href, rule.cssText]));
      const urls = rules.flatMap(([base, text]) =>
        [...text.matchAll(/url\("([^"]+)"\)/g)].map((found) => new URL(found[1], base || document.baseURI).href));
      window.__pf.kept = [...new Set(urls)].map((url) => Object.assign(new Image(), {src: url}));
      await Promise.all(window.__pf.kept.map((image) => image.decode().catch(() => null)));
      style = document.createElement('style');
      style.id = '__pf-style';
      document.head.append(style);
    }
    style.textContent = css;
    if (window.jQuery) jQuery.fx.off = true;
    document.activeElement?.blur?.();
    state = (seed * 7919 + 1) | 0;
    window.__pf.matches = [];
    drawn = 0;
    if (!CanvasRenderingContext2D.prototype.watched) {
      // A polygon on a canvas leaves nothing in the document, so its edges are counted as they are drawn.
      const lineTo = CanvasRenderingContext2D.prototype.lineTo;
      CanvasRenderingContext2D.prototype.watched = true;
      CanvasRenderingContext2D.prototype.lineTo = function (x, y) { drawn++; return lineTo.call(this, x, y); };
    }
    if (window.shapes?.shapeMatchesText && !shapes.watched) {
      // Tasks about shapes keep the answer in a closure; it passes through here.
      const matchesText = shapes.shapeMatchesText;
      shapes.watched = true;
      shapes.shapeMatchesText = (shape, wanted) => {
        const fits = matchesText(shape, wanted);
        window.__pf.matches.push([shape, fits]);
        return fits;
      };
    }
    Math.seedrandom(seed);
    core.EPISODE_MAX_TIME = 1e7;
    core.startEpisodeReal();
    for (let i = 0; i < 500 && !WOB_TASK_READY; i++) await new Promise((r) => setTimeout(r, 2));
    await Promise.all([...document.images].map((image) => image.decode().catch(() => null)));
    return core.getUtterance();
  };

  window.__pf = {
    // Whether nothing at this point reacts to a click.
    blank: (x, y) => {
      const el = document.elementFromPoint(x, y);
      return !el || (!el.closest('button,input,a,select,textarea,label,option,svg,table,[role],[data-pf],[class*=ui-]') &&
        getComputedStyle(el).cursor !== 'pointer');
    },
    // -1, 0 or 1: an element lies above, within or below the part of its scrolling box that is shown.
    beyond: (el, frame) => {
      const e = el.getBoundingClientRect(), b = frame.getBoundingClientRect();
      return e.top < b.top ? -1 : e.bottom > b.bottom + 1 ? 1 : 0;
    },
    // A part of an element, from one share of its width to another; `target` takes it like an element.
    part: (el, from, to) => ({piece: el, from, to}),
    // Whether a tab or a section head is the open one.
    open: (el) => !!el.closest('.ui-state-active,.ui-accordion-header-active,[aria-selected=true]'),
    // Where the first and the last character of an element's text lie: points at their outer edges.
    ends: (el) => {
      const walker = document.createTreeWalker(el, NodeFilter.SHOW_TEXT), rects = [], range = document.createRange();
      for (let node = walker.nextNode(); node; node = walker.nextNode())
        for (let i = 0; i < node.data.length; i++) {
          range.setStart(node, i);
          range.setEnd(node, i + 1);
          if (node.data[i].trim()) rects.push(range.getBoundingClientRect());
        }
      const a = rects[0], b = rects[rects.length - 1];
      const inside = a && a.top >= 0 && b.bottom <= REGION_HEIGHT;
      return inside ? [[a.left, (a.top + a.bottom) / 2], [b.right, (b.top + b.bottom) / 2]] : null;
    },
    // A text field: what it holds, whether it has the focus, whether all of it is selected.
    field: (what) => {
      const el = what.piece ?? what, focused = document.activeElement === el;
      const whole = el.selectionStart === null ? String(getSelection()) === el.value
        : el.selectionStart === 0 && el.selectionEnd === el.value.length;
      return [el.value, focused, focused && whole];
    },
    // Remembers what lies at a point, or has the focus when none is given; `same` asks whether it still does.
    mark: (x, y) => { marked = x === undefined ? document.activeElement : document.elementFromPoint(x, y); },
    same: (x, y) => !!marked && marked === (x === undefined ? document.activeElement : document.elementFromPoint(x, y)),
    lines: () => drawn,
    target, byText, all, clean, labels, settle, start, matches: [],
    shown: (el) => { clips = new Map(); return !!el && rectsOf(el).length > 0; },
    seed: (n) => { state = n | 0; },
  };
})();
