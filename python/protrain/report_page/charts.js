// Building blocks: elements, numbers, line charts over steps. Values of the run become text nodes only.
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name !== "key" && value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  if (attributes && attributes.key) node.style.setProperty("--key", attributes.key);  // after "style", which replaces all
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const is = (value) => typeof value === "number" && Number.isFinite(value);
const none = "–";
const plain = (value, digits = 4) => {
  if (!is(value)) return none;
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7)) return value.toExponential(Math.min(2, digits - 1)).replace(/\.?0+e/, "e").replace("e+", "e");
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 6 });
};
const whole = (value) => (is(value) ? Math.round(value).toLocaleString("en") : none);
const percent = (value, digits = 1) => (is(value) ? `${value > 0 ? "+" : ""}${(100 * value).toFixed(digits)} %` : none);
const share = (value) => (is(value) ? `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %` : none);
function bytes(value) {
  if (!is(value)) return none;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const unit = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(1, Math.abs(value))) / 10)));
  return `${plain(value / 1024 ** unit, unit ? 4 : 15)} ${units[unit]}`;
}
function seconds(value, digits = 4) {
  if (!is(value)) return none;
  const size = Math.abs(value);
  if (size >= 1 || size === 0) return `${plain(value, digits)} s`;
  return size >= 1e-3 ? `${plain(value * 1e3, digits)} ms` : `${plain(value * 1e6, digits)} µs`;
}

// About `count` round numbers between two others.
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) || 10);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && out.length < 100; ++i) out.push(Number((i * step).toPrecision(12)));
  return out;
}
function logTicks(low, high) {
  const decades = Math.log10(high / low), out = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); ++e)
    for (const digit of decades < 1 ? [1, 2, 3, 5, 7] : decades < 3 ? [1, 3] : [1]) {
      const value = Number(`${digit}e${e}`);
      if (value >= low && value <= high) out.push(value);
    }
  const every = Math.ceil(out.length / 8);
  return out.filter((_, i) => i % every === 0);
}

function table(head, rows, textColumns = []) {
  const cell = (tag) => (value, i) => el(tag, textColumns.includes(i) ? { class: "text" } : {}, value === null || value === undefined ? none : String(value));
  return el("div", { class: "wide", tabindex: 0 }, el("table", {}, el("thead", {}, el("tr", {}, head.map(cell("th")))), el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell("td")))))));
}
const legendOf = (keys) => el("div", { class: "legend" }, keys.map(([name, color, kind]) => el("span", { class: `key ${kind || ""}`, key: color }, name)));
const folded = (title, ...content) => el("details", {}, el("summary", {}, title), content);

// Nearest point of a line by step; points ascend.
function nearest(points, step) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < step) low = middle; else high = middle;
  }
  return points.length && Math.abs(points[low][0] - step) <= Math.abs(points[high][0] - step) ? points[low] : points[high];
}

// series: {name, color, points: [[step, value or null]], width, opacity, dash, dots, loose (does not set the scale; what is beyond it is drawn at its edge)}
// marks: {name, color, runs: [[first, last, count]], at: "top" | "bottom" | "line"}; levels: {name, value, color}
function lineChart({ title, unit, format, series, marks = [], levels = [], range, mayLog = false, fromZero = false }) {
  const drawn = series.filter((one) => one.points.length);
  const values = drawn.filter((one) => !one.loose).flatMap((one) => one.points.map((point) => point[1])).filter(is);
  const box = el("section", { class: "chart" });
  const heading = el("header", {}, el("h3", {}, title), el("span", { class: "quiet" }, unit));
  box.append(heading);
  if (!values.length) {
    box.append(el("p", { class: "missing" }, drawn.length ? "No finite value in this run." : "No rows of this in the run."));
    return box;
  }
  const sorted = Float64Array.from(values).sort();
  const least = sorted[0], most = sorted[sorted.length - 1];
  let log = mayLog && least > 0 && most > 15 * sorted[sorted.length >> 1];
  if (mayLog && least > 0) heading.append(el("label", {}, el("input", { type: "checkbox", checked: log ? "" : null, onchange: (event) => { log = event.target.checked; draw(); } }), " log scale"));
  const shownMarks = marks.filter((mark) => mark.runs.length);
  box.append(legendOf([...drawn.filter((one) => one.name).map((one) => [one.name, one.color, one.dash ? "dash" : "line"]), ...levels.filter((level) => level.name).map((level) => [level.name, level.color, "dash"]), ...shownMarks.map((mark) => [mark.name, mark.color])]));
  const area = svg("svg", { role: "img", "aria-label": `${title} (${unit}) by step, from ${format(least)} to ${format(most)}; the table below has the values` });
  const tip = el("div", { class: "tip", hidden: "" });
  box.append(area, tip);
  const height = 210, top = 8, bottom = 34;
  let width = 0, left = 0, [from, to] = range;
  const x = (step) => left + ((step - from) / (to - from)) * (width - left - 8);

  function draw() {
    width = area.clientWidth || 460;
    let low = least, high = most;
    for (const level of levels) { low = Math.min(low, level.value); high = Math.max(high, level.value); }
    if (log) { low = least / 1.15; high *= 1.15; }
    else {
      const pad = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
      low = low >= 0 && (fromZero || low - pad < 0) ? 0 : low - pad;
      high += pad;
    }
    const scale = log ? Math.log : (value) => value;
    const y = (value) => top + (1 - (scale(value) - scale(low)) / (scale(high) - scale(low))) * (height - top - bottom);
    const grid = log ? logTicks(low, high) : ticks(low, high, 5);
    left = Math.max(34, 10 + 6.4 * Math.max(...grid.map((tick) => format(tick).length)));
    area.setAttribute("viewBox", `0 0 ${width} ${height}`);
    area.style.height = `${height}px`;
    const parts = grid.map((tick) => [svg("line", { class: "grid", x1: left, x2: width - 8, y1: y(tick), y2: y(tick) }), svg("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, format(tick))]);
    for (const tick of ticks(from, to, Math.max(2, Math.floor((width - left) / 90))).filter(Number.isInteger)) parts.push(svg("text", { x: Math.min(x(tick), width - 3.3 * tick.toLocaleString("en").length), y: height - bottom + 16, "text-anchor": "middle" }, tick.toLocaleString("en")));
    parts.push(svg("text", { x: (left + width) / 2, y: height - 2, "text-anchor": "middle" }, "step"));
    for (const level of levels.filter(({ value }) => value >= low && value <= high)) parts.push(svg("line", { x1: left, x2: width - 8, y1: y(level.value), y2: y(level.value), stroke: level.color, "stroke-dasharray": "5 4" }));
    for (const mark of shownMarks) for (const [first, last] of mark.runs) {
      const line = mark.at === "line", wide = Math.max(line ? 1 : 2, x(last) - x(first));
      parts.push(svg("rect", { x: x(first) - (last > first ? 0 : wide / 2), width: wide, y: mark.at === "bottom" ? height - bottom - 7 : top, height: line ? height - top - bottom : 7, fill: mark.color, opacity: line ? 0.6 : 0.9 }));
    }
    for (const one of drawn) {
      let path = "", pen = "M";
      const dots = one.dots && one.points.length <= 120 || one.points.length === 1;
      one.points.forEach(([step, real], i) => {
        const value = one.loose && is(real) ? Math.min(high, Math.max(low, real)) : real;
        if (!is(value) || (log && value <= 0)) { pen = "M"; return; }
        path += `${pen}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
        const alone = pen === "M" && !is((one.points[i + 1] || [])[1]);
        pen = "L";
        if (dots || alone) parts.push(svg("circle", { cx: x(step), cy: y(value), r: one.dots ? 3 : 2, fill: one.color }));
      });
      parts.push(svg("path", { d: path, stroke: one.color, "stroke-width": one.width || 1.5, opacity: one.opacity || 1, "stroke-dasharray": one.dash }));
    }
    area.replaceChildren(...parts.flat());
  }
  const cursor = svg("line", { class: "cursor", y1: top, y2: height - bottom, stroke: "var(--quiet)" });
  area.addEventListener("pointermove", (event) => {
    const at = event.clientX - area.getBoundingClientRect().left;
    const main = drawn[0].points;
    const step = nearest(main, from + ((at - left) / (width - left - 8)) * (to - from))[0];
    cursor.setAttribute("x1", x(step)); cursor.setAttribute("x2", x(step));
    area.append(cursor);
    const lines = drawn.filter((one) => one.name).map((one) => [one, nearest(one.points, step)]);
    tip.replaceChildren(el("div", {}, `step ${step.toLocaleString("en")}`), ...lines.map(([one, [when, value]]) => el("div", { class: "key line", key: one.color }, `${one.name}: ${is(value) ? format(value) : "not finite"}${Math.round(when) === step ? "" : ` (step ${whole(when)})`}`)));
    tip.hidden = false;
    const right = at > width / 2;
    tip.style.left = right ? "auto" : `${at + 28}px`;
    tip.style.right = right ? `${width - at + 28}px` : "auto";
    tip.style.top = "70px";
  });
  area.addEventListener("pointerleave", () => { tip.hidden = true; cursor.remove(); });
  onResize(box, draw);
  return box;
}

// Calls back with drawAll(), once everything is laid out, and whenever the width changes after that.
const undrawn = [];
const drawAll = () => undrawn.splice(0).forEach((draw) => draw());
function onResize(node, callback) {
  let last = -1;
  const check = () => { if (node.clientWidth !== last) { last = node.clientWidth; callback(); } };
  undrawn.push(check);
  new ResizeObserver(() => requestAnimationFrame(check)).observe(node);  // not at once: drawing may change the height
}
