// What a person could see of a page, scrolled to wherever it scrolls: told from styles and boxes, nothing is changed.
//
//   start(view, until)             -> the sight of the page as a whole; view: the part of a frame that shows, or null;
//                                     until: when, by performance.now(), to look no closer
//   enter(element, style, sight)   -> the sight of what is in an element, from that of what is around it
//   follow(element, view)          -> the same for an element alone, by way of all that is around it
//   shows(element, sight)          -> whether any of the element's box shows; sight: of what is in it
//   text(node, data, words, sight) -> what shows of a piece of text; data: its beginning, words: the same, cleaned
//   isWritable(element, sight)     -> whether what is typed into it shows; sight: of what is in it
//   box(element, clip)             -> the part of a frame's holder that shows, in the frame's own pixels
//
// A sight has `hidden` (nothing shows), `own`, `flow`, `abs`, `fixed` (the rectangles [left, top, right, bottom] that
// the element itself and what is in it, by its position, are cut to), `shapes` (other cuts), `papers` (colours that may
// be behind, null for a picture), `opacity`, `filter`, `blend`, `spin`. All pixels are those of the window.
(() => {
  const FAINT = 24;  // the difference of a channel, of 255, that an eye needs
  const THIN = 4, SMALLEST = 5;  // pixels: of a slit to see through, of a line of text
  const COLOURS = /(?:rgba?|hsla?|hwb|lab|lch|oklab|oklch|color|color-mix)\((?:[^()]|\([^()]*\))*\)|#[\da-f]{3,8}\b|\btransparent\b/gi;
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const known = new Map();
  let start0 = null, root = {}, glances = 0, end = 0;

  // What a list of [colour, way to blend, filter] gives when painted one over the other: [red, green, blue, alpha].
  function painted(...layers) {
    const key = layers.join("|");
    let pixel = known.get(key);
    if (!pixel) {
      canvas.clearRect(0, 0, 1, 1);
      for (const [colour, blend, filter] of layers) {
        canvas.globalCompositeOperation = blend || "source-over";
        canvas.filter = filter || "none";
        canvas.fillStyle = "#0000";
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
      }
      canvas.globalCompositeOperation = "source-over";
      const data = canvas.getImageData(0, 0, 1, 1).data;
      pixel = [data[0], data[1], data[2], data[3] / 255];
      if (known.size < 20000) known.set(key, pixel);
    }
    return pixel;
  }
  const css = (pixel) => `rgba(${pixel[0]}, ${pixel[1]}, ${pixel[2]}, ${pixel[3]})`;

  const both = (a, b) => [Math.max(a[0], b[0]), Math.max(a[1], b[1]), Math.min(a[2], b[2]), Math.min(a[3], b[3])];
  const isSlit = (clip) => clip[2] - clip[0] < THIN || clip[3] - clip[1] < THIN;
  const rectOf = (rect) => [rect.left, rect.top, rect.right, rect.bottom];

  // What of one axis can be brought into a slit from `low` to `high` by scrolling, which stands at `at` of `most`.
  const reach = (low, high, at, most, isBack) =>
    high - low < THIN ? [low, high] : [low - at - (isBack ? most : 0), high - at + most];

  // Whether the page has asked for the browser's dark colours, of which no style tells.
  function isDark(style) {
    const scheme = style.colorScheme === "normal" ? document.querySelector("meta[name=color-scheme]")?.content ?? "" : style.colorScheme;
    return /dark/.test(scheme) && (!/light/.test(scheme) || matchMedia("(prefers-color-scheme: dark)").matches);
  }

  function start(view, until = Infinity) {
    end = until;
    const html = document.documentElement, page = document.scrollingElement ?? html;
    const style = getComputedStyle(html), isOwn = style.overflowX !== "visible" || style.overflowY !== "visible";
    const bars = isOwn || !document.body ? style : getComputedStyle(document.body);
    const shown = both([0, 0, innerWidth, innerHeight], view ?? [0, 0, innerWidth, innerHeight]);
    const isFixed = (way) => way === "hidden" || way === "clip";
    const [left, right] = isFixed(bars.overflowX) ? [shown[0], shown[2]]
      : reach(shown[0], shown[2], scrollX, Math.max(0, page.scrollWidth - innerWidth), style.direction === "rtl" || scrollX < 0);
    const [top, bottom] = isFixed(bars.overflowY) ? [shown[1], shown[3]]
      : reach(shown[1], shown[3], scrollY, Math.max(0, page.scrollHeight - innerHeight), scrollY < 0);
    const clip = [left, top, right, bottom];
    root = {gives: new Set(isOwn ? [html] : [html, document.body])};
    glances = 0;
    return start0 = {
      hidden: isSlit(shown), own: clip, flow: clip, abs: clip, fixed: shown, shapes: [], papers: [isDark(style) ? [18, 18, 18, 1] : [255, 255, 255, 1]],
      opacity: 1, filter: "", blend: "", blur: 0, shadows: "", ink: null, spin: null, style,
    };
  }

  const length = (text, whole, scale) => {
    if (/[a-z]+\(/i.test(text.replace(/calc\(/g, ""))) return NaN;
    let sum = 0, count = 0;
    for (const [, sign, number, unit] of text.matchAll(/([+-]?)\s*([\d.]+(?:e[+-]?\d+)?)(%|px)?/gi)) {
      sum += (sign === "-" ? -1 : 1) * (unit === "%" ? number / 100 * whole : number * scale);
      count++;
    }
    return count ? sum : NaN;
  };
  const words = (text) => text.match(/(?:[^\s()]|\((?:[^()]|\([^()]*\))*\))+/g) ?? [];

  // The path of a `clip-path`; undefined where there is none, null where it cannot be told.
  function pathOf(text, [x, y, right, bottom], scale) {
    const [, name, inside] = /^([\w-]+)\((.*)\)/s.exec(text) ?? [];
    if (!name) return /^(none|[a-z]+-box)$/.test(text) ? undefined : null;
    const w = right - x, h = bottom - y, path = new Path2D();
    const [first, where] = inside.split(/(?:^|\s)at\s/), spot = words(where ?? "50% 50%");
    const cx = x + length(spot[0] ?? "", w, scale[0]), cy = y + length(spot[1] ?? "50%", h, scale[1]);
    const side = (text, low, high, whole, unit) => text === "closest-side" || !text ? Math.min(low, high)
      : text === "farthest-side" ? Math.max(low, high) : length(text, whole, unit);
    if (name === "inset") {
      const [t, r = t, b = t, l = r] = words(inside.split(/\sround\s/)[0]);
      const cut = [length(l, w, scale[0]), length(t, h, scale[1]), length(r, w, scale[0]), length(b, h, scale[1])];
      if (cut.some(isNaN)) return null;
      path.rect(x + cut[0], y + cut[1], Math.max(0, w - cut[0] - cut[2]), Math.max(0, h - cut[1] - cut[3]));
    } else if (name === "circle" || name === "ellipse") {
      const [a = "", b = a] = words(first), whole = Math.hypot(w, h) / Math.SQRT2;
      const sides = [Math.abs(cx - x), Math.abs(right - cx), Math.abs(cy - y), Math.abs(bottom - cy)];
      const isRound = name === "circle";
      const rx = side(a, isRound ? Math.min(...sides) : sides[0], isRound ? Math.max(...sides) : sides[1], isRound ? whole : w, scale[0]);
      const ry = isRound ? rx : side(b, sides[2], sides[3], h, scale[1]);
      if ([cx, cy, rx, ry].some(isNaN)) return null;
      path.ellipse(cx, cy, Math.max(0, rx), Math.max(0, ry), 0, 0, 7);
    } else if (name === "polygon") {
      for (const point of inside.replace(/^(nonzero|evenodd),/, "").split(",")) {
        const [px, py = "0"] = words(point), at = [x + length(px ?? "", w, scale[0]), y + length(py, h, scale[1])];
        if (at.some(isNaN)) return null;
        path.lineTo(...at);
      }
    } else if (name === "path" && scale[0] === 1 && scale[1] === 1) {
      path.addPath(new Path2D(/"(.*)"/s.exec(inside)?.[1] ?? ""), new DOMMatrix([1, 0, 0, 1, x, y]));
    } else return null;
    return path;
  }

  // Whether a mask lets nothing through; one that is no gradient cannot be told, and is taken for such a one.
  function masks(style) {
    if ((style.webkitMaskBoxImageSource ?? "none") !== "none") return true;
    if (!style.maskImage || style.maskImage === "none") return false;
    const isLight = /luminance/.test(style.maskMode ?? "");
    const lets = (colour) => {
      const [r, g, b, a] = painted([colour]);
      return a * (isLight ? Math.max(r, g, b) / 255 : 1) > 0.1;
    };
    if (!/gradient\(/.test(style.maskImage) || !(style.maskImage.match(COLOURS) ?? []).some(lets)) return true;
    return style.maskSize.split(",").every((size) => words(size).some((part) => parseFloat(part) < THIN));
  }

  function turn(style, spin) {
    if (!spin && style.transform === "none" && style.rotate === "none" && style.scale === "none") return null;
    let own = new DOMMatrix();
    if (style.rotate !== "none") {
      const [, axis, angle] = /^(.*?)\s*([\d.e+-]+deg)$/.exec(style.rotate) ?? [];
      const around = {"": "0, 0, 1", x: "1, 0, 0", y: "0, 1, 0", z: "0, 0, 1"}[axis] ?? axis?.split(/\s+/).join(", ");
      if (angle) own = new DOMMatrix(`rotate3d(${around}, ${angle})`);
    }
    if (style.scale !== "none") own = own.multiply(new DOMMatrix(`scale3d(${[...style.scale.split(" "), 1, 1, 1].slice(0, 3).map((one, i) => i === 1 && !style.scale.includes(" ") ? parseFloat(style.scale) : one)})`));
    if (style.transform !== "none") own = own.multiply(new DOMMatrix(style.transform));
    return spin ? spin.multiply(own) : own;
  }

  // The colours that a background may give on top of others; null for a picture.
  function papersOf(style, filter, below) {
    let papers = below;
    const over = (colour) => (paper) => painted([css(paper)], [css(painted([colour, "", filter]))]);
    const flat = painted([style.backgroundColor, "", filter]);
    if (flat[3] > 0.98) papers = [flat];
    else if (flat[3] > 0 && papers) papers = papers.map(over(style.backgroundColor));
    if (style.backgroundImage === "none" || isTextClip(style)) return papers;
    return overlaid(style, filter, papers);
  }

  function overlaid(style, filter, papers) {
    const over = (colour) => (paper) => painted([css(paper)], [css(painted([colour, "", filter]))]);
    const isAway = style.backgroundPosition.match(/-?[\d.]+(?=px)/g)?.some((at) => Math.abs(at) > 1000);
    const isOnce = /no-repeat/.test(style.backgroundRepeat);
    if (isOnce && (isAway || words(style.backgroundSize).some((part) => parseFloat(part) < THIN))) return papers;
    if (/url\(|image-set\(|paint\(|cross-fade\(|element\(/.test(style.backgroundImage)) return null;
    const stops = style.backgroundImage.match(COLOURS) ?? [];
    const isPart = isOnce && !/^(auto|cover|100%)/.test(style.backgroundSize);  // the rest shows what is below
    return papers && [...(isPart ? papers : []), ...stops.flatMap((stop) => papers.map(over(stop)))].slice(0, 32);
  }
  const isTextClip = (style) => /text/.test(style.backgroundClip ?? "") || /text/.test(style.webkitBackgroundClip ?? "");

  function enter(element, style, outer) {
    if (style.display === "contents") return {...outer, style, inked: undefined};
    if (style.position !== "static" && element.matches(":modal, :popover-open")) outer = {...start0};
    const own = outer[style.position === "fixed" ? "fixed" : style.position === "absolute" ? "abs" : "flow"];
    const inner = {...outer, own, style, inked: undefined};
    inner.hidden = outer.hidden || style.display === "none" || style.contentVisibility === "hidden";
    if (inner.hidden) return inner;
    if (style.opacity !== "1") inner.opacity = outer.opacity * style.opacity;
    if (style.filter !== "none") {
      let mine = "";
      for (const [whole, name, value] of style.filter.matchAll(/([\w-]+)\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)/g)) {
        if (name === "opacity") inner.opacity *= value.endsWith("%") ? parseFloat(value) / 100 : parseFloat(value);
        else if (name === "blur") inner.blur = outer.blur + parseFloat(value);
        else if (name === "drop-shadow") inner.shadows = `${outer.shadows}, ${value}`;
        else if (name === "url") inner.hidden = true;  // it may be anything
        else mine += whole + " ";
      }
      inner.filter = mine + outer.filter;
    }
    if (style.mixBlendMode !== "normal") inner.blend = style.mixBlendMode === "plus-lighter" ? "lighter" : style.mixBlendMode;
    const spin = turn(style, outer.spin);
    const isFaced = !spin || style.backfaceVisibility !== "hidden" || !(spin.inverse().m33 < 0);
    inner.spin = style.transformStyle === "preserve-3d" ? spin : null;
    inner.hidden ||= inner.opacity < 0.05 || !isFaced || masks(style);
    inner.papers = papersOf(style, inner.filter, outer.papers);
    if (style.backgroundImage !== "none" && isTextClip(style)) inner.ink = overlaid(style, inner.filter, outer.papers) ?? "picture";

    const isCut = style.overflowX !== "visible" || style.overflowY !== "visible" || /paint|strict|content/.test(style.contain);
    const hasShape = style.clipPath !== "none" || style.clip !== "auto";
    let clip = own;
    if ((isCut || hasShape) && !root.gives.has(element)) {
      const rect = element.getBoundingClientRect();
      const scale = element.offsetWidth ? [rect.width / element.offsetWidth, rect.height / element.offsetHeight] : [1, 1];
      if (isCut && style.display !== "inline") clip = cutBy(element, style, rect, scale, own);
      if (hasShape) cutShape(style, rectOf(rect), scale, inner);
      const cut = style.position !== "static" && /^rect\((.*)\)$/.exec(style.clip);
      if (cut) {
        const [t, r, b, l] = cut[1].split(",").map((side, i) => side.trim() === "auto" ? (i === 1 ? rect.width : i === 2 ? rect.height : 0) : parseFloat(side));
        clip = both(clip, [rect.left + l, rect.top + t, rect.left + r, rect.top + b]);
      }
    }
    const holdsFixed = style.transform !== "none" || style.filter !== "none" || style.perspective !== "none" || style.rotate !== "none"
      || style.scale !== "none" || style.translate !== "none" || (style.backdropFilter ?? "none") !== "none" || style.contentVisibility === "auto"
      || /paint|layout|strict|content/.test(style.contain) || /transform|perspective|filter/.test(style.willChange) || (style.containerType ?? "normal") !== "normal";
    inner.flow = clip;
    if (holdsFixed || style.position !== "static") inner.abs = clip;
    if (holdsFixed) inner.fixed = clip;
    return inner;
  }

  function cutBy(element, style, rect, scale, own) {
    const left = rect.left + element.clientLeft * scale[0], top = rect.top + element.clientTop * scale[1];
    const box = element.clientWidth || element.clientHeight
      ? [left, top, left + element.clientWidth * scale[0], top + element.clientHeight * scale[1]] : rectOf(rect);
    const slit = both(box, own), clip = [...own], isTurned = /vertical|sideways/.test(style.writingMode);
    const axis = (way, i, at, most, isBack) => {
      if (way === "visible") return;
      [clip[i], clip[i + 2]] = ["auto", "scroll"].includes(way)
        ? reach(slit[i], slit[i + 2], at, Math.max(0, most), at < 0 || isBack) : [slit[i], slit[i + 2]];
    };
    const isContained = /paint|strict|content/.test(style.contain);
    const way = (name) => style[name] === "visible" && isContained ? "clip" : style[name];
    const back = style.direction === "rtl" || isTurned || /reverse/.test(style.flexDirection + style.flexWrap);
    axis(way("overflowX"), 0, element.scrollLeft * scale[0], (element.scrollWidth - element.clientWidth) * scale[0], back);
    axis(way("overflowY"), 1, element.scrollTop * scale[1], (element.scrollHeight - element.clientHeight) * scale[1], back);
    return clip;
  }

  function cutShape(style, rect, scale, inner) {
    const path = style.clipPath === "none" ? undefined : pathOf(style.clipPath, rect, scale);
    if (path === null) inner.hidden = true;
    else if (path) inner.shapes = [...inner.shapes, [path, /evenodd/.test(style.clipPath) ? "evenodd" : "nonzero"]];
  }

  function follow(element, view) {
    const around = [];
    for (let at = element; at; at = at.assignedSlot ?? at.parentElement ?? at.getRootNode().host) around.unshift(at);
    let sight = start(view);
    for (const at of around) sight = enter(at, getComputedStyle(at), sight);
    return sight;
  }

  // The share of a rectangle that shows, 0 to 1.
  function share(rect, clip, shapes) {
    const [left, top, right, bottom] = both(rect, clip), w = rect[2] - rect[0], h = rect[3] - rect[1];
    if (right <= left || bottom <= top || w < 1 || h < 1) return 0;
    let part = (right - left) * (bottom - top) / (w * h);
    for (const [path, rule] of shapes) {
      const spots = [0.1, 0.3, 0.5, 0.7, 0.9].filter((at) => canvas.isPointInPath(path, rect[0] + at * w, (rect[1] + rect[3]) / 2, rule));
      part = Math.min(part, spots.length / 5);
    }
    return part;
  }

  function shows(element, sight) {
    if (sight.hidden) return false;
    return [...element.getClientRects()].some((rect) => {
      const [left, top, right, bottom] = both(rectOf(rect), sight.own);
      return right - left >= Math.min(2, rect.width) && bottom - top >= Math.min(2, rect.height) && share(rectOf(rect), sight.own, sight.shapes) > 0;
    });
  }

  const differs = (ink, papers, opacity, blend) => !papers || papers.some((paper) => {
    const seen = blend ? painted([css(paper)], [css(ink), blend]) : painted([css(paper)], [css(ink)]);
    return [0, 1, 2].some((i) => Math.abs(seen[i] - paper[i]) * opacity >= FAINT);
  });

  // The colours of those shadows that show the letters they belong to.
  function shadowsOf(text, size) {
    return text.split(/,(?![^()]*\))/).flatMap((one) => {
      const [x = 0, y = 0, blur = 0] = one.replace(COLOURS, "").match(/-?[\d.]+(?=px)/g) ?? [];
      return Math.max(Math.abs(x), Math.abs(y)) < 2 * size && blur < size ? one.match(COLOURS) ?? [] : [];
    });
  }

  // Whether text in an element differs from what is behind it.
  function isInk(element, sight, rect) {
    const {style, papers} = sight;
    if (sight.inked === undefined) {
      const isDrawn = element.namespaceURI?.endsWith("/svg");
      const inks = [isDrawn && style.fill !== "none" ? style.fill : isDrawn ? "transparent" : style.webkitTextFillColor || style.color];
      if (parseFloat(style.webkitTextStrokeWidth) > 0) inks.push(style.webkitTextStrokeColor);
      if (isDrawn && style.stroke !== "none") inks.push(style.stroke);
      if (style.textShadow !== "none" || sight.shadows) inks.push(...shadowsOf(style.textShadow + sight.shadows, parseFloat(style.fontSize)));
      sight.inks = inks.map((ink) => painted([ink, "", sight.filter]));
      const isClear = sight.inks[0][3] < 0.9;
      if (isClear && sight.ink) sight.inks.push(...(sight.ink === "picture" ? [[127, 0, 127, 1]] : sight.ink));
      sight.inked = sight.inks.some((ink) => differs(ink, papers, sight.opacity, sight.blend));
    }
    return sight.inked || isOnOther(element, sight, rect);
  }

  // The same where what is behind is beside it in the document, such as a picture with a caption laid over it.
  function isOnOther(element, sight, [left, top, right, bottom]) {
    const x = (left + right) / 2, y = (top + bottom) / 2;
    if (x < 0 || y < 0 || x >= innerWidth || y >= innerHeight || ++glances > 300) return false;
    const stack = element.getRootNode().elementsFromPoint(x, y);
    const at = stack.findIndex((one) => one === element);
    if (at < 0) return false;
    for (const one of stack.slice(at + 1)) {
      if (one.contains(element)) {
        if (painted([getComputedStyle(one).backgroundColor])[3] > 0.9) return false;
        continue;
      }
      if (["IMG", "VIDEO", "CANVAS", "svg"].includes(one.tagName)) return sight.inks.some((ink) => ink[3] > 0.1);
      const papers = papersOf(getComputedStyle(one), "", sight.papers);
      if (papers !== sight.papers) return sight.inks.some((ink) => differs(ink, papers, sight.opacity, sight.blend));
    }
    return false;
  }

  const isLegible = ({hidden, style, blur}) => !hidden && parseFloat(style.fontSize) >= SMALLEST
    && blur <= parseFloat(style.fontSize) / 3 && (style.webkitTextSecurity ?? "none") === "none";

  // Whether what is typed into an element shows; sight: of what is in it.
  const isWritable = (element, sight) => isLegible(sight) && isInk(element, sight, rectOf(element.getBoundingClientRect()));

  // What of a text node shows, "" for none.
  function text(node, data, words, sight) {
    const {style} = sight;
    if (style.visibility !== "visible" || !isLegible(sight)) return "";
    const range = document.createRange();
    range.setStart(node, 0);
    range.setEnd(node, data.length);
    const rects = [...range.getClientRects()].map(rectOf).filter((rect) => rect[2] - rect[0] >= 1 && rect[3] - rect[1] >= 1);
    if (!rects.length) return "";
    const clip = sight.flow, shares = rects.map((rect) => share(rect, clip, sight.shapes));
    if (!shares.some((one) => one > 0) || isSquashed(rects, words, style)) return "";
    if (!isInk(node.parentElement ?? node.getRootNode().host, sight, rects[shares.findIndex((one) => one > 0)])) return "";
    return shares.every((one) => one > 0.7) ? words : shownParts(node, data, range, clip, sight.shapes);
  }

  // Whether letters are so thin, small or close that nobody can tell them apart.
  function isSquashed(rects, words, style) {
    const letters = words.replace(/[\s\p{M}\u200c\u200d]/gu, "").length, isTurned = /vertical|sideways/.test(style.writingMode);
    let area = 0, thick = 0;
    for (const [left, top, right, bottom] of rects) {
      const w = right - left, h = bottom - top;
      area += w * h;
      thick = Math.max(thick, letters < 3 ? Math.max(w, h) : isTurned ? w : h);
    }
    const size = Math.min(thick, 1.3 * parseFloat(style.fontSize));
    return thick < THIN || area < 0.12 * letters * size * size;
  }

  function shownParts(node, data, range, clip, shapes) {
    let kept = "", isGap = false, isAny = false;
    for (const {0: part, index} of data.matchAll(/\S{1,12}|\s+/g)) {
      if (performance.now() > end) break;
      range.setStart(node, index);
      range.setEnd(node, index + part.length);
      const rects = [...range.getClientRects()].map(rectOf);
      const shown = rects.some((rect) => share(rect, clip, shapes) > 0.4);
      isAny ||= part.trim() && shown;
      if (part.trim() ? shown : !isGap) kept += part;
      else if (part.trim() && !isGap) kept += " … ";
      isGap = part.trim() ? !shown : isGap;
    }
    return isAny ? kept : "";
  }

  function box(element, clip) {
    const rect = element.getBoundingClientRect(), scale = element.offsetWidth ? rect.width / element.offsetWidth : 1;
    const left = rect.left + element.clientLeft * scale, top = rect.top + element.clientTop * scale;
    if (scale < 0.25) return [0, 0, 0, 0];  // its letters are too small
    return both(clip, rectOf(rect)).map((side, i) => (side - (i % 2 ? top : left)) / scale);
  }

  return {start, enter, follow, shows, text, isWritable, box, isSlit};
})()
