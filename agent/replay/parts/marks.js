// An action drawn on the frame it was decided on. Places are on the grid 0..1000.
const SVG = "http://www.w3.org/2000/svg";
const PINK = "#e0217a";

function draw(svg, tag, attributes, text = "") {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.textContent = text;
  svg.append(node);
}

function numbers(value, count) {
  const good = Array.isArray(value) && value.length === count && value.every((n) => n !== null && Number.isFinite(Number(n)));
  return good ? value.map((n) => Math.min(1000, Math.max(0, Number(n)))) : null;
}

// A line with a head, bright below so that it shows on any screen.
function arrow(svg, from, to, size) {
  const angle = Math.atan2(to[1] - from[1], to[0] - from[0]);
  const side = (turn) => `${to[0] - size * Math.cos(angle + turn)},${to[1] - size * Math.sin(angle + turn)}`;
  for (const [color, width] of [["#fff", 5], [PINK, 2.5]]) {
    const line = { stroke: color, "stroke-width": width, "vector-effect": "non-scaling-stroke", fill: "none", "stroke-linejoin": "round" };
    draw(svg, "line", { ...line, x1: from[0], y1: from[1], x2: to[0], y2: to[1] });
    draw(svg, "polyline", { ...line, points: `${side(0.5)} ${to} ${side(-0.5)}` });
  }
}

// screen: its width and height. shownWidth: of the frame as it stands in the page, in CSS pixels.
function drawMarks(svg, marks, screen, shownWidth) {
  svg.replaceChildren();
  const high = 1000 * screen[1] / screen[0], unit = 1000 / (shownWidth || 1);  // unit: one CSS pixel
  svg.setAttribute("viewBox", `0 0 1000 ${high}`);
  const place = (point) => point && [point[0], point[1] * high / 1000];
  const to = place(numbers(marks.coordinate, 2)), from = place(numbers(marks.start_coordinate, 2));
  const region = numbers(marks.region, 4);
  const action = typeof marks.action === "string" ? marks.action : "";
  if (!action) return;
  if (from && to) {
    draw(svg, "circle", { cx: from[0], cy: from[1], r: 6 * unit, fill: PINK, stroke: "#fff", "stroke-width": 1.5 * unit });
    arrow(svg, from, to, 14 * unit);
  }
  if (to) {
    const r = 13 * unit;
    for (const [color, width] of [["#fff", 5], [PINK, 2.5]]) {
      const line = { stroke: color, "stroke-width": width, "vector-effect": "non-scaling-stroke", fill: "none" };
      for (const way of [-1, 1]) {  // what is under the middle stays to be seen
        draw(svg, "line", { ...line, x1: to[0] + way * r / 2, y1: to[1], x2: to[0] + way * 2 * r, y2: to[1] });
        draw(svg, "line", { ...line, x1: to[0], y1: to[1] + way * r / 2, x2: to[0], y2: to[1] + way * 2 * r });
      }
      draw(svg, "circle", { ...line, cx: to[0], cy: to[1], r });
    }
  }
  const ways = { up: [0, -1], down: [0, 1], left: [-1, 0], right: [1, 0] };
  const way = Object.hasOwn(ways, marks.scroll_direction) ? ways[marks.scroll_direction] : null;
  if (action === "scroll" && way) {
    const start = to || [500, high / 2], long = 70 * unit;
    arrow(svg, start, [start[0] + way[0] * long, start[1] + way[1] * long], 14 * unit);
  }
  if (region) {
    const [x0, y0, x1, y1] = region;
    const rest = { stroke: PINK, "stroke-width": 2.5, "vector-effect": "non-scaling-stroke", fill: PINK, "fill-opacity": 0.12 };
    const box = { x: x0, y: y0 * high / 1000, width: Math.max(0, x1 - x0), height: Math.max(0, y1 - y0) * high / 1000 };
    draw(svg, "rect", { ...rest, ...box });
  }
  const text = typeof marks.text === "string" ? marks.text.replace(/\s+/g, " ").slice(0, 80) : "";
  const told = ["key", "hold_key"].includes(action) ? `⌨ ${text}` : text && `“${text}”`;
  const words = [action, marks.scroll_direction, marks.scroll_amount, told];
  const line = words.filter((word) => typeof word === "number" || (typeof word === "string" && word)).join(" ");
  const wide = Math.min(980, line.length * 8.5 * unit);
  const x = Math.max(6 * unit, Math.min((to ? to[0] : 20) + 30 * unit, 990 - wide));
  const y = to ? (to[1] > 60 * unit ? to[1] - 32 * unit : to[1] + 46 * unit) : 26 * unit;
  const font = { x, y, "font-size": 15 * unit, "font-family": "system-ui, sans-serif", "font-weight": 600 };
  draw(svg, "text", { ...font, stroke: "#fff", "stroke-width": 4 * unit, "stroke-linejoin": "round" }, line);
  draw(svg, "text", { ...font, fill: "#b00d5c" }, line);
}
