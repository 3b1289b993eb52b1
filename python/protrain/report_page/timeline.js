// Timelines of steps under each other on one time axis: a lane a row. Groups: {name, trace}, traces as report.py makes
// them. On a canvas, since a step of a large model has thousands of tasks.
const laneColors = { compute: 0, h2d: 1, d2h: 2, cpu_update: 3, gpu_update: 4, disk_read: 5, disk_write: 6, collective: 8 };
const light = /^(forward|load|upload)/;  // tasks drawn in a lighter tone than what else their lane does
const laneColor = (lane) => `var(--c${laneColors[lane] ?? 7})`;

function timeline(groups) {
  const rowHeight = 24, headHeight = 26, axisHeight = 30, gutter = 92, edge = 6;
  const canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": "Timelines of a step, a lane a row; the table below has the lanes' sums" });
  const tip = el("div", { class: "tip", role: "status", hidden: "" });
  const box = el("section", { class: "chart" });
  let rows, ends, view, picked = null;  // view: [begin, end] in seconds

  function lay() {
    rows = []; ends = 0;
    let y = 0;
    for (const group of groups) {
      ends = Math.max(ends, group.trace.seconds);
      rows.push({ group, y });
      y += headHeight;
      for (const lane of laneOrder(groups.map((one) => one.trace))) {
        const spans = group.trace.spans.filter((span) => group.trace.lanes[span[0]] === lane);
        rows.push({ group, lane, spans, y });
        y += rowHeight;
      }
    }
    canvas.style.height = `${y + axisHeight}px`;
  }
  const width = () => canvas.clientWidth;
  const x = (time) => gutter + ((time - view[0]) / (view[1] - view[0])) * (width() - gutter - edge);
  const time = (at) => view[0] + ((at - gutter) / (width() - gutter - edge)) * (view[1] - view[0]);

  function show(begin, end) {
    const span = Math.min(ends, Math.max(1e-6, end - begin));
    const first = Math.min(Math.max(0, begin), ends - span);
    view = [first, first + span];
    draw();
  }
  function zoom(factor, at = (view[0] + view[1]) / 2) { show(at - (at - view[0]) * factor, at + (view[1] - at) * factor); }

  function draw() {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name.replace(/^var\(|\)$/g, "")).trim();
    const ratio = devicePixelRatio || 1, pen = canvas.getContext("2d");
    const high = canvas.clientHeight;
    canvas.width = Math.round(width() * ratio); canvas.height = Math.round(high * ratio);
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    pen.textBaseline = "middle";
    const times = ticks(view[0], view[1], Math.max(2, Math.floor(width() / 110)));
    const unit = view[1] > 2 && view[1] - view[0] > 0.2 ? [1, "s"] : view[1] - view[0] > 2e-3 ? [1e3, "ms"] : [1e6, "µs"];
    for (const tick of times) {
      pen.fillStyle = color("--grid"); pen.fillRect(x(tick), 0, 1, high - axisHeight);
      pen.fillStyle = color("--quiet"); pen.textAlign = "center";
      pen.fillText(plain(tick * unit[0], 7), x(tick), high - axisHeight + 10);
    }
    pen.textAlign = "left";
    pen.fillText(`time from the start of the step (${unit[1]})`, gutter, high - 7);
    let count = 0;
    for (const row of rows) {
      pen.fillStyle = color(row.lane ? "--quiet" : "--text");
      pen.fillText(row.lane || `${row.group.name}: ${seconds(row.group.trace.seconds)}`, row.lane ? 12 : 0, row.y + (row.lane ? rowHeight : headHeight + 6) / 2);
      if (!row.lane) continue;
      pen.fillStyle = color("--grid"); pen.fillRect(gutter, row.y + rowHeight - 1, width() - gutter - edge, 1);
      const base = color(laneColor(row.lane));
      pen.save(); pen.beginPath(); pen.rect(gutter, row.y, width() - gutter - edge, rowHeight); pen.clip();
      let covered = -1;  // tasks below a pixel that lie in one already drawn are left out
      for (const span of row.spans) {
        const from = x(span[2]), to = x(span[2] + span[3]);
        if (to < gutter || from > width()) continue;
        ++count;
        if (to - from < 1 && to < covered) continue;
        const name = row.group.trace.names[span[1]], wide = Math.max(1, to - from - (to - from > 3 ? 1 : 0));
        covered = from + 1;
        pen.globalAlpha = light.test(name) ? 0.6 : 1;
        pen.fillStyle = base;
        pen.fillRect(from, row.y + 3, wide, rowHeight - 7);
        pen.globalAlpha = 1;
        if (picked && picked.name === name) { pen.strokeStyle = color("--text"); pen.lineWidth = 2; pen.strokeRect(from, row.y + 3, wide, rowHeight - 7); }
        const begin = Math.max(from, gutter) + 4, room = Math.min(to, width() - edge) - begin - 4;
        if (room < 60) continue;
        const fits = Math.floor((room / pen.measureText(name).width) * name.length);
        pen.fillStyle = color(light.test(name) ? "--text" : "--ground");
        pen.fillText(fits < name.length ? `${name.slice(0, Math.max(0, fits - 2))}…` : name, begin, row.y + rowHeight / 2 - 0.5);
      }
      pen.restore();
    }
    canvas.dataset.tasks = count;
    canvas.dataset.view = view.join(" ");
  }

  function find(event) {
    const frame = canvas.getBoundingClientRect();
    const at = event.clientX - frame.left, down = event.clientY - frame.top;
    const row = rows.find((one) => one.lane && down >= one.y && down < one.y + rowHeight);
    if (!row || at < gutter) return null;
    const when = time(at), slack = 2 * (time(1) - time(0));
    let best = null;
    for (const span of row.spans) {
      const off = Math.max(0, span[2] - when, when - span[2] - span[3]);
      if (off <= slack && (!best || off < best.off)) best = { off, span };
      if (span[2] > when + slack) break;
    }
    return best && { row, span: best.span, name: row.group.trace.names[best.span[1]], at, down };
  }
  function hover(event) {
    const found = find(event);
    if ((found && found.span) !== (picked && picked.span)) { picked = found; draw(); }
    tip.hidden = !found;
    if (!found) return;
    const lines = [found.name, `${found.row.lane}, ${found.row.group.name}`, `${seconds(found.span[3])}, from ${seconds(found.span[2])} to ${seconds(found.span[2] + found.span[3])}`];
    for (const group of groups.filter((one) => one !== found.row.group)) {
      const id = group.trace.names.indexOf(found.name), twin = group.trace.spans.find((span) => span[1] === id);
      lines.push(`${group.name}: ${twin ? `${seconds(twin[3])}, from ${seconds(twin[2])} to ${seconds(twin[2] + twin[3])}` : "no such task"}`);
    }
    tip.replaceChildren(...lines.map((line, i) => el("div", {}, i ? line : el("b", {}, line))));
    const right = found.at > width() / 2;
    tip.style.left = right ? "auto" : `${found.at + 24}px`;
    tip.style.right = right ? `${width() - found.at + 24}px` : "auto";
    tip.style.top = `${canvas.offsetTop + found.down + 18}px`;
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => { drag = { at: event.clientX, view }; if (event.isTrusted) canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return hover(event);
    const moved = ((event.clientX - drag.at) / (width() - gutter - edge)) * (drag.view[1] - drag.view[0]);
    tip.hidden = true;
    show(drag.view[0] - moved, drag.view[1] - moved);
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; if (picked) { picked = null; draw(); } });
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY * 0.004), time(event.clientX - canvas.getBoundingClientRect().left));
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { const moved = (event.deltaX / width()) * (view[1] - view[0]); show(view[0] + moved, view[1] + moved); }
    else return;
    event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, time(event.clientX - canvas.getBoundingClientRect().left)));
  canvas.addEventListener("keydown", (event) => {
    const step = (view[1] - view[0]) / 8;
    const act = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: () => show(0, ends), ArrowLeft: () => show(view[0] - step, view[1] - step), ArrowRight: () => show(view[0] + step, view[1] + step) }[event.key];
    if (act && !event.ctrlKey && !event.metaKey) { act(); event.preventDefault(); }
  });
  const button = (text, label, onclick) => el("button", { type: "button", "aria-label": label, title: label, onclick }, text);
  box.append(el("div", { class: "legend" }, button("+", "zoom in", () => zoom(0.5)), button("−", "zoom out", () => zoom(2)), button("whole step", "show the whole step", () => show(0, ends)), "drag to pan; Ctrl + wheel, pinch, double click or + and − to zoom; hover names the task"), canvas, tip);
  lay();
  view = [0, ends];
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  onResize(box, draw);
  return { box, replace(next) { groups = next; picked = null; lay(); show(0, ends); } };
}

function laneOrder(traces) {
  const all = [...new Set(traces.flatMap((trace) => trace.lanes))];
  const known = Object.keys(laneColors);
  const place = (lane) => (known.includes(lane) ? known.indexOf(lane) : known.length);
  return all.sort((a, b) => place(a) - place(b));
}
