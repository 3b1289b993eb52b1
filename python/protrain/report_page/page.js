// The page: sections in the order in which a reader asks. Whatever a run lacks is named where it would stand.
const D = JSON.parse(document.getElementById("data").textContent);
const T = D.training, S = T.series, P = D.prediction, M = D.memory;
const page = document.getElementById("page");
const missing = (text) => el("p", { class: "missing" }, text);
const section = (title, ...content) => page.append(el("section", {}, el("h2", {}, title), content));
const sum = (values) => values.reduce((all, value) => all + (is(value) ? value : 0), 0);

addEventListener("error", (event) => {
  document.documentElement.dataset.error = event.message;
  page.prepend(el("p", { class: "bad" }, `This page has a fault: ${event.message}`));
});

function tiles() {
  const tile = (label, value, detail) => el("div", { class: "tile" }, el("span", {}, label), el("b", {}, value), detail && el("span", {}, detail));
  const out = [], last = T.last;
  if (T.rows) {
    out.push(tile("last logged step", whole(last.step), [is(last.epoch) && `epoch ${plain(last.epoch, 3)}`, is(last.tokens) && `${whole(last.tokens)} tokens`].filter(Boolean).join(", ")));
    const first = (S.loss.find((point) => is(point[1])) || [])[1];
    out.push(tile("loss", is(last.loss) ? plain(last.loss) : "not finite", is(first) ? `first ${plain(first)}` : ""));
  }
  if (is(T.best_eval_loss)) out.push(tile("best evaluation loss", plain(T.best_eval_loss), `perplexity ${plain(Math.exp(T.best_eval_loss))}`));
  if (is(T.tokens_per_second)) out.push(tile("tokens/s, median", plain(T.tokens_per_second), is(T.predicted_tokens_per_second ?? P.tokens_per_second) ? `predicted ${plain(T.predicted_tokens_per_second ?? P.tokens_per_second)}` : ""));
  const device = M && M.device;
  if (device) out.push(tile("device memory", bytes(T.device_peak_bytes ?? device.planned_bytes), `${is(T.device_peak_bytes) ? "used at most" : "planned"}; limit ${bytes(device.limit_bytes)}`));
  if (M && M.host) out.push(tile("host memory", bytes(T.host_peak_bytes ?? M.host.planned_bytes), `${is(T.host_peak_bytes) ? "used at most" : "planned"}; limit ${bytes(M.host.limit_bytes)}`));
  if (T.skipped || T.infinite) out.push(tile("logged steps skipped", whole(T.skipped), `${whole(T.infinite)} not finite`));
  return el("div", { class: "tiles" }, out);
}

const withTrend = (name, color, points, means) => (means.length ? [{ name, color, points, opacity: 0.45, width: 1 }, { name: `${name}, mean`, color, points: means, width: 2.2 }] : [{ name, color, points }]);

function training() {
  if (!T.rows && !S.eval_loss.length) return section("Training", missing("No step has been logged yet."));
  const steps = [S.loss, S.eval_loss, S.loss_again, S.error].flatMap((points) => points.length ? [points[0][0], points[points.length - 1][0]] : []);
  const low = Math.min(...steps), high = Math.max(...steps);
  const range = low === high ? [low - 1, high + 1] : [low, high];
  const marks = [
    { name: "not finite", color: "var(--bad)", runs: T.marks.infinite, at: "top" },
    { name: "update skipped", color: "var(--warn)", runs: T.marks.skipped, at: "bottom" },
    { name: "resumed", color: "var(--quiet)", runs: T.marks.resumed.map((step) => [step, step, 1]), at: "line" },
  ];
  const charts = el("div", { class: "charts" },
    lineChart({ title: "Loss", unit: "nats a token", format: plain, range, marks, mayLog: true, series: [...withTrend("training", "var(--c0)", S.loss, S.loss_trend), { name: "evaluation", color: "var(--c2)", points: S.eval_loss, dots: true, width: 2 }, { name: "before resuming", color: "var(--c7)", points: S.loss_again, opacity: 0.6, width: 1, loose: true }] }),
    lineChart({ title: "Speed", unit: "tokens/s", format: plain, range, fromZero: true, marks: marks.slice(2), levels: is(P.tokens_per_second) && !S.predicted_tokens_per_second.length ? [{ name: "predicted", value: P.tokens_per_second, color: "var(--c3)" }] : [], series: [...withTrend("measured", "var(--c0)", S.tokens_per_second, S.tokens_per_second_trend), { name: "predicted", color: "var(--c3)", points: S.predicted_tokens_per_second, dash: "5 4" }] }),
    lineChart({ title: "Gradient norm", unit: "before clipping", format: plain, range, marks, mayLog: true, series: withTrend("norm", "var(--c0)", S.grad_norm, S.grad_norm_trend) }),
    lineChart({ title: "Learning rate", unit: "per update", format: plain, range, fromZero: true, marks: marks.slice(1), series: [{ name: "rate", color: "var(--c0)", points: S.learning_rate }] }));
  const rows = T.table.map((row) => [whole(row.step), plain(row.loss, 6), plain(row.eval_loss, 6), plain(row.grad_norm), plain(row.learning_rate), plain(row.tokens_per_second), seconds(row.step_seconds), percent(row.error), "loss" in row ? [row.skipped && "update skipped", (row.loss === null || row.grad_norm === null) && "not finite"].filter(Boolean).join(", ") : "evaluation"]);
  section("Training", charts,
    T.again > 0 && el("p", { class: "quiet" }, `${whole(T.again)} rows of steps that were trained again after a resume count no more; the newer ones do.`),
    !S.eval_loss.length && missing("No evaluation: set validation_file and eval_steps."),
    folded(`Table of these charts${T.rows > T.table.length ? `: a selection of ${whole(T.rows)} logged steps` : ""}`, table(["step", "loss", "evaluation loss", "gradient norm", "learning rate", "tokens/s", "step time", "over its prediction", "remark"], rows, [8])));
  return range;
}

// Busy time of each lane, predicted beside measured, from a trace or from the last comparison in the log.
function lanesTable(measured) {
  const predicted = Object.keys(P.lanes || {}).length ? P.lanes : (D.predicted || {}).busy || {};
  const latest = Object.entries(T.lane_errors).map(([lane, points]) => [lane, ...points[points.length - 1]]);
  if (!Object.keys(predicted).length && !measured) return null;
  const planned = P.step_seconds || (D.predicted || {}).seconds;
  const busy = measured ? measured.busy : Object.fromEntries(latest.map(([lane, , error]) => [lane, predicted[lane] * (1 + error)]));
  const took = measured ? measured.seconds : undefined, when = measured ? measured.step : (latest[0] || [])[1];
  const line = (name, expected, real) => [name, seconds(expected), share(expected / planned), seconds(real), share(real / took), percent(real / expected - 1)];
  const lanes = laneOrder([{ lanes: Object.keys(predicted) }, { lanes: Object.keys(busy) }]).filter((lane) => predicted[lane] || busy[lane]);
  return table(["lane", "predicted busy", "of the step", is(when) ? `measured, step ${whole(when)}` : "measured", "of the step", "error"], [...lanes.map((lane) => line(lane, predicted[lane], busy[lane])), line("step", planned, took)]);
}

function prediction(range) {
  const content = [], lanes = laneOrder([{ lanes: Object.keys(T.lane_errors) }]);
  const hundred = (points) => points.map(([step, value]) => [step, is(value) ? 100 * value : value]);
  if (S.error.length) {
    content.push(lineChart({ title: "Prediction error", unit: "% of the prediction; above 0: slower than predicted", format: (value) => `${plain(value, 3)} %`, range,
      levels: [10, 0, -10].map((value) => ({ value, name: { 10: "±10 %", 0: "exact" }[value], color: value ? "var(--warn)" : "var(--c1)" })),
      series: [...withTrend("step", "var(--text)", hundred(S.error), hundred(S.error_trend)), ...lanes.map((lane) => ({ name: lane, color: laneColor(lane), points: hundred(T.lane_errors[lane]), loose: true, dots: true, width: 1 }))] }));
    const at = new Map();
    for (const lane of lanes) for (const [step, value] of T.lane_errors[lane]) at.set(step, { ...at.get(step), [lane]: value });
    for (const [step, value] of T.logged_errors) at.set(step, { ...at.get(step), "whole step": value });
    const columns = T.logged_errors.length ? ["whole step", ...lanes] : lanes;
    if (at.size) content.push(folded("Table: errors in the log", table(["step", ...columns], [...at].map(([step, values]) => [whole(step), ...columns.map((lane) => percent(values[lane]))]))));
  } else content.push(missing("No prediction of the step time to compare with: plan.json and metrics.jsonl hold none."));
  const busy = el("div", {});
  const fillLanes = (measured) => { const one = lanesTable(measured); busy.replaceChildren(...(one ? [one] : [])); };
  fillLanes(D.measured[0]);
  section("Predicted and measured", el("div", { class: "columns" }, el("div", {}, content), busy));

  const parts = [];
  const groupsOf = (measured) => [measured && { name: `measured, step ${measured.step}`, trace: measured }, D.predicted && { name: "predicted", trace: D.predicted }].filter(Boolean);
  const groups = groupsOf(D.measured[0]);
  if (!D.measured.length) parts.push(missing("No measured timeline: set trace_steps: [N] to have step N traced."));
  if (!D.predicted) parts.push(missing("No predicted timeline: trace-predicted.json is not in the folder."));
  if (groups.length) {
    const lines = timeline(groups);
    if (D.measured.length > 1) {
      parts.push(el("label", { class: "quiet" }, "traced step ", el("select", { onchange: (event) => { const one = D.measured[event.target.selectedIndex]; lines.replace(groupsOf(one)); fillLanes(one); } }, D.measured.map((one) => el("option", {}, String(one.step))))));
    }
    parts.push(lines.box);
    const cut = groups.filter((group) => group.trace.left_out);
    parts.push(cut.map((group) => missing(`${group.name}: the last ${whole(group.trace.left_out)} tasks are left out.`)));
  }
  section("Timeline of a step", parts);
}

const tagColors = { weights: 0, "optimizer state": 3, gradients: 2, activations: 1, workspace: 5, batches: 8, control: 4, process: 6, planned: 0 };
function memoryBar(title, segments, limit, measured) {
  const used = sum(segments.map((one) => one.value));
  const far = limit > 6 * Math.max(used, measured || 0);  // the limit would leave nothing to see
  const scale = (far ? Math.max(used, measured || 0) : Math.max(limit || 0, used, measured || 0)) * 1.002 || 1;
  const mark = (value, name, color) => el("em", { key: color, class: value > scale * 0.6 ? "left" : "", style: `left: ${(100 * value) / scale}%` }, name);
  const bar = el("div", { class: "bar", role: "img", "aria-label": `${title}: ${bytes(used)} planned of ${bytes(limit)}` }, segments.map((one) => el("i", { class: one.gaps ? "gaps" : "", key: one.color, title: `${one.name}: ${bytes(one.value)}`, style: `width: ${(100 * one.value) / scale}%` })));
  if (is(limit) && !far) bar.append(mark(limit, `limit ${bytes(limit)}`, "var(--bad)"));
  const peak = is(measured) && `used at most ${bytes(measured)}`;
  return el("div", { class: "chart" }, el("header", {}, el("h3", {}, title), el("span", { class: "quiet" }, [`${bytes(used)} planned`, peak, is(limit) && `limit ${bytes(limit)}${far ? " (far to the right)" : ` (${share(used / limit)} planned)`}`].filter(Boolean).join(", "))),
    bar, legendOf(segments.filter((one) => one.value > 0).map((one) => [`${one.name} ${bytes(one.value)}`, one.color])));
}
function tierSegments(tier, prefix = "") {
  if (!tier || !(tier.planned_bytes > 0)) return [];
  const tags = Object.entries(tier.by_tag).filter((one) => one[1] > 0).sort((a, b) => b[1] - a[1]).map(([tag, value]) => ({ name: prefix + tag, value, color: `var(--c${tagColors[tag] ?? 7})` }));
  const rest = tier.planned_bytes - sum(tags.map((one) => one.value));
  return !tags.length ? [{ name: `${prefix}planned`, value: rest, color: "var(--c0)" }] : rest > 0 ? [...tags, { name: `${prefix}gaps`, value: rest, color: "var(--c7)", gaps: true }] : tags;
}
function memory(range) {
  if (!M) return section("Memory", missing("No plan.json with the bytes of each tier."));
  const device = M.device || {}, host = M.host || {};
  const onDevice = [...tierSegments(device), { name: "context, libraries, driver", value: device.outside_bytes || 0, color: "var(--c7)" }];
  const onHost = [{ name: "process", value: host.process_bytes || 0, color: "var(--c6)" }, ...tierSegments(M.pinned, "pinned: "), ...tierSegments(M.pageable, "pageable: ")];
  const rest = (host.planned_bytes || 0) - sum(onHost.map((one) => one.value));
  if (rest > 0.5 * (device.planned_bytes || 0)) onHost.push({ name: "the device, which is host memory here", value: rest, color: "var(--c7)" });
  const rows = [];
  for (const tier of ["device", "pinned", "pageable"]) {
    if (!M[tier]) continue;
    for (const [tag, value] of Object.entries(M[tier].by_tag)) rows.push([tier, tag, bytes(value)]);
    rows.push([tier, "peak, as planned", bytes(M[tier].planned_bytes)]);
  }
  rows.push(["device", "context, libraries, driver", bytes(device.outside_bytes)], ["device", "limit", bytes(device.limit_bytes)], ["device", "used at most", bytes(T.device_peak_bytes)], ["host", "process", bytes(host.process_bytes)], ["host", "planned in all", bytes(host.planned_bytes)], ["host", "limit", bytes(host.limit_bytes)], ["host", "used at most", bytes(T.host_peak_bytes)], ["", "weights, gradients and moments of the model", bytes(M.state_bytes)]);
  const peaks = range && (S.device_peak_bytes.length || S.host_peak_bytes.length);
  const gib = (points) => points.map(([step, value]) => [step, is(value) ? value / 2 ** 30 : value]);
  section("Memory", el("div", { class: "charts" },
    el("div", { class: "stack" }, memoryBar("Device", onDevice, device.limit_bytes, T.device_peak_bytes), memoryBar("Host", onHost, host.limit_bytes, T.host_peak_bytes)),
    peaks && lineChart({ title: "Highest use so far", unit: "GiB", format: plain, range, fromZero: true, series: [{ name: "device", color: "var(--c0)", points: gib(S.device_peak_bytes) }, { name: "host", color: "var(--c6)", points: gib(S.host_peak_bytes) }] })),
    el("p", { class: "quiet" }, "By tag: what lives at the moment when most bytes of the tier do. What the host used at most has pages of files in it (LibTorch's are the most), which its plan and limit leave out."),
    folded("Table: bytes by tier and tag", table(["tier", "what", "bytes"], rows, [1])));
}

function strip(title, values, colors, unit) {
  if (!values.length) return null;
  const runs = [];
  values.forEach((value, i) => { const last = runs[runs.length - 1]; if (last && last[2] === value) last[1] = i; else runs.push([i, i, value]); });
  const counts = {};
  for (const value of values) counts[value] = (counts[value] || 0) + 1;
  const color = (value) => `var(--c${colors[value] ?? 7})`;
  const text = runs.slice(0, 200).map(([first, last, value]) => `${first === last ? first : `${first}–${last}`} ${value}`).join(", ");
  return el("div", {}, el("h3", {}, title), legendOf(Object.entries(counts).map(([value, count]) => [`${value}: ${count}`, color(value)])),
    el("div", { class: "strip", role: "img", "aria-label": `${title}: ${text}` }, values.map((value, i) => el("i", { key: color(value), title: `${unit} ${i}: ${value}` }))),
    el("div", { class: "ends" }, el("span", {}, `${unit} 0`), el("span", {}, `${unit} ${values.length - 1}`)), folded("As text", el("p", { class: "quiet" }, text)));
}
function plan() {
  if (!D.plan) return section("Plan", missing("No plan.json that can be read."));
  const knobs = Object.entries(D.plan.knobs).map(([key, value]) => [key, key.endsWith("_bytes") ? bytes(value) : typeof value === "number" ? plain(value, 12) : String(value)]);
  const facts = [], add = (name, value) => value && facts.push([name, value]);
  add("predicted step time", is(P.step_seconds) && seconds(P.step_seconds));
  add("predicted speed", is(P.tokens_per_second) && `${plain(P.tokens_per_second)} tokens/s`);
  add("rates", typeof P.measured === "boolean" && (P.measured ? "measured on this machine" : "estimated, not measured"));
  add("from", P.source);
  add("binding limit", P.binding);
  const search = P.search || {};
  add("plans in the space", is(search.space) && plain(search.space));
  add("bounded", is(search.bounded) && whole(search.bounded));
  add("simulated", is(search.simulated) && whole(search.simulated));
  add("search time", is(search.seconds) && seconds(search.seconds));
  const second = P.runner_up;
  add("runner-up", second && [is(second.step_seconds) && `${seconds(second.step_seconds)} a step:`, second.why].filter(Boolean).join(" "));
  section("Plan",
    strip("Activation mode of each layer", D.plan.activation, { keep: 1, keep_light: 5, swap: 2, recompute: 3, recompute_host: 4 }, "layer"),
    strip("Where each chunk is updated", D.plan.place, { resident: 0, visiting: 2, cpu: 3 }, "chunk"),
    el("div", { class: "columns" }, el("div", {}, el("h3", {}, "Knobs"), table(["knob", "value"], knobs)),
      el("div", {}, el("h3", {}, "Prediction and search"), facts.length ? table(["what", "value"], facts, [1]) : missing("plan.json holds no prediction: the plan was set by hand or made by an older version."))));
}

page.append(el("h1", {}, D.name), el("p", { class: "quiet" }, [D.model, D.folder].filter(Boolean).join(" · ")));
if (D.notes.length) page.append(el("div", { class: "notes" }, D.notes.map((note) => el("p", {}, note))));
page.append(tiles());
const range = training();
prediction(range);
memory(range);
plan();
if (D.config) page.append(folded("Configuration (train_config.yaml)", el("pre", {}, D.config)));
drawAll();
