"""`protrain report`: the page of whatever a run's folder holds, drawn by a real browser without a fault."""

import html
import json
import os
import random
import re
import shutil
import subprocess
import time

import pytest
from protrain import report
from protrain.report_metrics import live_rows, thin
from train_support import protrain, rows, write_config

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# Runs in the page once it is drawn; what it returns is asserted on.
LOOK = """
<script>
"use strict";
addEventListener("load", () => {
  const out = {};
  try {
    out.charts = Object.fromEntries([...document.querySelectorAll(".chart")].map((chart) =>
      [chart.querySelector("h3")?.textContent || "timeline", chart.querySelectorAll("path[d^=M]").length]));
    out.levels = Object.fromEntries([...document.querySelectorAll(".chart:has(h3)")].map((chart) =>
      [chart.querySelector("h3").textContent, chart.querySelectorAll("svg line[stroke-dasharray]").length]));
    out.outside = [...document.querySelectorAll(".chart svg :is(line, circle, path)")].filter((one) => {
      const ys = one.tagName === "path" ? one.getAttribute("d").split(/[ML]/).slice(1).map((at) => at.split(" ")[1]) : ["y1", "y2", "cy"].map((name) => one.getAttribute(name) ?? 100);
      return ys.some((y) => !(7.9 <= Number(y) && Number(y) <= 176.1));
    }).map((one) => one.outerHTML.slice(0, 200));
    out.canvas = null;
    const canvas = document.querySelector("canvas");
    if (canvas) {
      const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      const seen = new Map();
      for (let i = 0; i < image.length; i += 4)
        if (image[i + 3] === 255) seen.set(image.slice(i, i + 3).join(), (seen.get(image.slice(i, i + 3).join()) || 0) + 1);
      out.canvas = { tasks: Number(canvas.dataset.tasks), colors: [...seen.values()].filter((count) => count > 12).length };
      const frameOf = canvas.getBoundingClientRect();
      const at = (x, y) => ({ clientX: frameOf.left + x, clientY: frameOf.top + y, bubbles: true, cancelable: true });
      const view = () => canvas.dataset.view.split(" ").map(Number);
      out.tips = [];
      for (let x = 93; x < frameOf.width && out.tips.length < 400; x += 2) {
        canvas.dispatchEvent(new PointerEvent("pointermove", at(x, 26 + 12)));
        const tip = canvas.parentNode.querySelector(".tip");
        if (!tip.hidden) out.tips.push([...tip.children].map((line) => line.textContent));
      }
      out.whole = view();
      out.scrolls = canvas.dispatchEvent(new WheelEvent("wheel", { ...at(300, 40), deltaY: -300 })) && view()[0] === 0;
      out.zooms = !canvas.dispatchEvent(new WheelEvent("wheel", { ...at(300, 40), deltaY: -300, ctrlKey: true }));
      out.zoomed = view(); out.zoomedTasks = Number(canvas.dataset.tasks);
      canvas.dispatchEvent(new PointerEvent("pointerdown", at(300, 40)));
      canvas.dispatchEvent(new PointerEvent("pointermove", at(280, 40)));
      canvas.dispatchEvent(new PointerEvent("pointerup", at(280, 40)));
      out.panned = view();
    }
    const area = document.querySelector(".chart svg");
    if (area) {
      const frameOf = area.getBoundingClientRect();
      area.dispatchEvent(new PointerEvent("pointermove", { clientX: frameOf.right - 9, clientY: frameOf.top + 50 }));
      out.readout = area.parentNode.querySelector(".tip").textContent;
    }
    out.text = document.getElementById("page").innerText;
    out.error = document.documentElement.dataset.error || null;
    out.owned = document.documentElement.dataset.owned || null;
    out.requests = performance.getEntriesByType("resource").map((one) => one.name);
  } catch (error) { out.error = String(error); }
  document.body.replaceChildren(Object.assign(document.createElement("pre"), { id: "look", textContent: JSON.stringify(out) }));
});
</script></body>"""


def look(page, tmp_path, dark=False):
    """What a browser shows of this page, and that it did so without a fault or a request."""
    if BROWSER is None:
        pytest.skip("no chromium on this machine: the page cannot be drawn")
    path = tmp_path / "look.html"
    path.write_text(page.replace("</body>", LOOK), encoding="utf-8")
    words = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1300,1000",
        f"--user-data-dir={tmp_path}/browser",
    ]
    words += ["--blink-settings=preferredColorScheme=0"] if dark else []
    dom = subprocess.run(
        [*words, "--virtual-time-budget=10000", "--dump-dom", path.as_uri()],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    found = re.search(r'<pre id="look">(.*?)</pre>', dom.stdout, re.DOTALL)
    assert found, dom.stdout[-2000:] + dom.stderr[-2000:]
    out = json.loads(html.unescape(found[1]))
    assert out["error"] is None and out["owned"] is None and out["requests"] == [] and out["outside"] == []
    return out


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def write_rows(folder, lines):
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text(
        "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    )
    return folder


def train_row(step, loss=2.0, **more):
    return (
        dict(
            step=step,
            kind="train",
            loss=loss,
            grad_norm=1.0,
            learning_rate=1e-3,
            skipped=False,
            tokens=step * 64,
            tokens_per_second=1000.0 + step,
            step_seconds=0.064,
        )
        | more
    )


def shown(text):
    """As innerText gives it, on one line."""
    return re.sub(r"\s+", " ", text)


@pytest.fixture(scope="module")
def run(model, long_data, tmp_path_factory):
    """A run with two traces, evaluations, streamed weights, and a prediction as `train` writes it."""
    folder = tmp_path_factory.mktemp("report")
    config = write_config(
        folder / "c.yaml",
        model_name_or_path=str(model),
        train_file=str(long_data),
        output_dir=str(folder / "out"),
        validation_file=str(long_data),
        cutoff_len=32,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=12,
        eval_steps=4,
        save_steps=0,
        logging_steps=1,
        trace_steps=[2, 6],
        device="cpu",
        bf16=False,
    )
    config.write_text(
        config.read_text() + "plan: {n_persist: 0, n_buffer: 1, activation: recompute, place: {n_resident: 0}}\n"
    )
    protrain("train", config)
    out = folder / "out"
    if not (out / "trace-predicted.json").exists():
        shutil.copy(out / "trace-step-6.json", out / "trace-predicted.json")
    plan = json.loads((out / "plan.json").read_text())
    plan.setdefault(
        "prediction",
        {
            "step_seconds": 0.02,
            "tokens_per_second": 3000,
            "lanes": {"compute": 0.018},
            "measured": True,
            "source": "profile",
            "binding": "host memory",
            "runner_up": {"step_seconds": 0.021, "why": "5 % slower: a link is busy"},
            "search": {"space": 1e9, "bounded": 512, "simulated": 40, "seconds": 0.1},
        },
    )
    (out / "plan.json").write_text(json.dumps(plan))
    return out


def test_the_command_writes_a_page_that_a_browser_draws(run, tmp_path):
    page_file = tmp_path / "page.html"
    result = protrain("report", run, "--output", page_file)
    assert str(page_file) in result.stderr
    page = page_file.read_text()
    seen = look(page, tmp_path)
    for chart in ("Loss", "Speed", "Gradient norm", "Learning rate", "Prediction error", "Highest use so far"):
        assert seen["charts"][chart] >= 1, chart
    assert seen["charts"]["Loss"] == 2  # training, evaluation
    events = [
        json.loads((run / name).read_text())["traceEvents"] for name in ("trace-step-6.json", "trace-predicted.json")
    ]
    assert seen["canvas"]["tasks"] == sum(event["ph"] == "X" for trace in events for event in trace)
    assert seen["canvas"]["colors"] >= 5  # lanes, text, grid
    plan = json.loads((run / "plan.json").read_text())
    text = shown(seen["text"])
    for words in (
        "n_persist",
        plan["prediction"]["binding"],
        plan["prediction"]["source"],
        "recompute: 2",
        "By tag",
        "limit",
    ):
        assert words in text, words
    last = rows(run)[-1]
    assert seen["readout"].startswith(f"step {last['step']}")
    assert f"{last['loss']:.4g}" in seen["readout"]
    assert not re.search("No (measured|predicted|prediction|evaluation|plan)", text)


def test_the_timeline_names_tasks_zooms_and_pans(run, tmp_path):
    seen = look(report.page(report.collect(run)), tmp_path, dark=True)
    tasks = {
        event["name"]: event["dur"]
        for event in json.loads((run / "trace-step-6.json").read_text())["traceEvents"]
        if event["ph"] == "X"
    }
    named = {lines[0] for lines in seen["tips"]}
    assert (
        named <= tasks.keys()
        and any("backward layer" in name for name in named)
        and any("forward layer" in name for name in named)
    )
    assert all(lines[1].startswith("compute, measured, step 6") and "predicted" in lines[3] for lines in seen["tips"])
    (whole, zoomed, panned) = (seen[key] for key in ("whole", "zoomed", "panned"))
    assert whole[0] == 0 and zoomed[0] > whole[0] and zoomed[1] - zoomed[0] < 0.5 * whole[1]
    assert seen["zooms"] and seen["scrolls"]  # the wheel alone is the page's
    assert seen["zoomedTasks"] < seen["canvas"]["tasks"]
    assert panned[0] > zoomed[0] and panned[1] - panned[0] == pytest.approx(zoomed[1] - zoomed[0])


def test_bytes_by_tag_sum_to_the_peak_or_a_little_less(run):
    memory = report.collect(run)["memory"]
    for tier in ("device", "pinned", "pageable"):
        planned = memory[tier]["planned_bytes"]
        assert 0.9 * planned <= sum(memory[tier]["by_tag"].values()) <= planned, tier


@pytest.mark.parametrize(
    "lacking, words",
    [
        (("trace-step-2.json", "trace-step-6.json"), ("No measured timeline: set trace_steps",)),
        (("trace-predicted.json", "plan.json"), ("No predicted timeline", "No plan.json")),
        (
            ("metrics.jsonl", "train_config.yaml"),
            ("the run has not begun", "No step has been logged yet", "No prediction of the step time"),
        ),
        (
            ("plan.json", "trace-step-2.json", "trace-step-6.json", "trace-predicted.json", "train_config.yaml"),
            ("No evaluation",),
        ),
    ],
)
def test_what_is_missing_is_named(run, lacking, words, tmp_path):
    folder = shutil.copytree(run, tmp_path / "part")
    for name in lacking:
        (folder / name).unlink()
    if words == ("No evaluation",):
        write_rows(folder, rows(folder))
    text = shown(look(report.page(report.collect(folder)), tmp_path)["text"])
    for one in words:
        assert one in text


def test_torn_foreign_and_broken_files_are_named_and_the_rest_is_shown(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "broken")
    whole = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(
        '{"step": "x"}\nnull\n{"step": 1, "kind": ["a"]}\n{"step": true, "kind": "train"}\n'
        + whole
        + '{"step": 12, "kind": "of another version"}\n'
        + '{"step": 13, "kind": "tra'
    )
    (folder / "trace-step-6.json").write_text('{"traceEvents": [{"ph": "X", "ts": 1')
    (folder / "trace-predicted.json").write_text('[{"ph": "X", "ts": NaN, "dur": 1, "tid": {}}, 3, null]')
    (folder / "plan.json").write_text(
        json.dumps(
            {
                "schema": 9,
                "activation": "keep",
                "place": {"a": 1},
                "memory": {"device": {"by_tag": [], "planned_bytes": "much"}, "host": 3},
                "prediction": {"step_seconds": "fast", "lanes": [], "runner_up": 7, "search": None},
                "layout": 5,
            }
        )
    )
    data = report.collect(folder)
    assert data["training"]["rows"] == 12 and data["training"]["last"]["step"] == 12
    assert [trace["step"] for trace in data["measured"]] == [2] and data["predicted"] is None
    text = shown(look(report.page(data), tmp_path)["text"])
    for words in (
        "is torn",
        "3 unreadable lines are left out, the first is line 1",
        "2 rows of a kind",
        "trace-step-6.json: cannot be read",
        "trace-predicted.json: cannot be read: it holds no tasks",
    ):
        assert words in text, words


def test_rows_that_are_not_finite_skipped_or_done_again_are_shown_as_such(tmp_path):
    lines = [train_row(step) for step in range(1, 11)]
    lines[3] = json.dumps(train_row(4, float("nan"), skipped=True)) + "\n"  # NaN, as other programs write it
    lines[4] = train_row(5, None, skipped=True)  # as we do
    lines[5] = '{"step": 6, "kind": "train", "loss": 1e999, "grad_norm": 1, "skipped": true}\n'
    lines += [train_row(step, 7.0) for step in range(8, 13)] + [dict(step=12, kind="evaluate", eval_loss=None)]
    folder = write_rows(tmp_path / "out", lines)
    data = report.collect(folder)
    training = data["training"]
    assert [point[0] for point in training["series"]["loss"]] == list(range(1, 13))
    assert [point[1] for point in training["series"]["loss"]] == [2.0] * 3 + [None] * 3 + [2.0] + [7.0] * 5
    assert [point[0] for point in training["series"]["loss_again"]] == [8, 9, 10]
    assert training["marks"] == {"skipped": [[4, 6, 3]], "infinite": [[4, 6, 3]], "resumed": [8]}
    text = shown(look(report.page(data), tmp_path)["text"])
    for words in (
        "not finite",
        "update skipped",
        "resumed",
        "before resuming",
        "3 rows of steps that were trained again",
    ):
        assert words in text, words


def test_a_resume_may_follow_a_resume():
    steps = [1, 2, 3, 4, 3, 4, 5, 6, 2, 3]
    live, again, resumed = live_rows([dict(step=step, at=i) for i, step in enumerate(steps)])
    assert [(row["step"], row["at"]) for row in live] == [(1, 0), (2, 8), (3, 9)]
    assert len(again) == len(steps) - len(live) and resumed == [2, 3]


def test_nothing_in_a_run_becomes_markup(run, tmp_path):
    evil = '</script><script>document.documentElement.dataset.owned = 1</script><img src=x onerror="document.documentElement.dataset.owned=2">'
    folder = shutil.copytree(run, tmp_path / ("out" + evil.replace("/", "")))
    plan = json.loads((folder / "plan.json").read_text())
    plan |= {evil: evil, "order": evil, "activation": [evil] * 4, "place": [evil]}
    plan["memory"]["device"]["by_tag"][evil] = 5
    plan["prediction"] |= {"source": evil, "runner_up": {"why": evil}, "lanes": {evil: 1}}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "train_config.yaml").write_text(f"model_name_or_path: {evil}\n")
    for name in ("trace-step-6.json", "trace-predicted.json"):
        events = json.loads((folder / name).read_text())["traceEvents"]
        for event in events:
            event["name"] = event["name"] if event["ph"] == "M" and event["tid"] else evil
            if event["ph"] == "M":
                event["args"]["name"] += evil
        (folder / name).write_text(json.dumps(events))
    page = report.page(report.collect(folder))
    assert page.count("<script") == 2 and page.count("</script") == 2 and "<img" not in page
    seen = look(page, tmp_path)  # nothing has run
    assert seen["text"].count("</script><script>") >= 5
    assert seen["tips"][0][0] == evil


def test_the_page_needs_no_network(run):
    page = report.page(report.collect(run))
    assert "default-src 'none'" in page
    code = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|\bsrc=|\bhref=|@import|url\(|fetch\(|XMLHttpRequest|import\(", code)


def test_100000_rows_stay_small_and_keep_their_extremes(tmp_path):
    lines = [train_row(step, 3 - step / 1e5) for step in range(1, 100_001)]
    lines[70_000]["loss"], lines[30_001]["loss"] = 90.0, 0.001
    for at in range(0, 100_000, 37):
        lines[at]["skipped"], lines[at]["grad_norm"] = True, None
    folder = write_rows(tmp_path / "out", lines)
    began = time.monotonic()
    page = report.page(report.collect(folder))
    assert time.monotonic() - began < 20  # two seconds on a quiet machine
    assert len(page) < 600_000
    training = data_of(page)["training"]
    points = training["series"]["loss"]
    assert [70_001, 90.0] in points and [30_002, 0.001] in points and points[0][0] == 1 and points[-1][0] == 100_000
    assert sum(count for _, _, count in training["marks"]["skipped"]) == training["skipped"] == 2703
    seen = look(page, tmp_path)
    assert seen["charts"]["Loss"] == 2  # the line and its mean


def test_fewer_points_keep_every_extreme_and_gap():
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    for _ in range(50):
        points = [[i, None if dice.random() < 0.02 else dice.gauss(0, 1)] for i in range(dice.randrange(1, 3000))]
        few = thin(points, 300)
        assert (
            len(few) <= 302
            and few == sorted(few, key=lambda point: point[0])
            and few[0] == points[0]
            and few[-1] == points[-1]
        )
        assert all(point in points for point in few)
        finite = [point[1] for point in points if point[1] is not None]
        assert {min(finite, default=0), max(finite, default=0)} <= {point[1] for point in few} | (
            {0} if not finite else set()
        )
        assert any(point[1] is None for point in few) == any(point[1] is None for point in points)


def test_a_folder_that_is_no_run_or_a_file_in_the_way_ends_with_one_line(run, tmp_path):
    def refused(code, *words, of):
        result = protrain("report", *of, check=False)
        assert result.returncode == code
        (line,) = result.stderr.splitlines()
        assert line.startswith("protrain: error: ") and all(str(word) in line for word in words), line

    refused(2, tmp_path / "absent", "not there", of=[tmp_path / "absent"])
    refused(2, tmp_path, "metrics.jsonl", "plan.json", of=[tmp_path])
    waits = tmp_path / "waits"
    waits.mkdir()
    os.mkfifo(waits / "metrics.jsonl")
    refused(5, waits / "metrics.jsonl", "must be a file", of=[waits])
    mine = tmp_path / "notes.html"
    mine.write_text("<p>mine</p>")
    refused(2, mine, "no report", of=[run, "--output", mine])
    assert mine.read_text() == "<p>mine</p>"
    refused(2, "folder or a device", of=[run, "--output", "/dev/null"])
    refused(2, tmp_path / "a" / "b.html", "no folder", of=[run, "--output", tmp_path / "a" / "b.html"])
    protrain("report", run)
    protrain("report", run)  # over the report that is there
    assert (run / "report.html").read_text().endswith("</html>\n")
    assert not [path for path in run.iterdir() if path.name.startswith(".report")]


def test_errors_of_the_prediction_are_those_of_the_log(tmp_path):
    lines = [train_row(step, predicted_step_seconds=0.064 / (1.25 if step < 5 else 0.98)) for step in range(1, 9)]
    lines.insert(4, dict(step=4, kind="forecast", step_error=0.25, compute_error=0.3, h2d_error=None))
    lines.append(dict(step=8, kind="forecast", step_error=-0.02, compute_error=-0.01, h2d_error=0.07))
    of_steps = report.collect(write_rows(tmp_path / "no-log", [row for row in lines if row["kind"] == "train"]))
    of_steps = [value for _, value in of_steps["training"]["series"]["error"]]
    assert of_steps == pytest.approx([0.25] * 4 + [-0.02] * 4)
    folder = write_rows(tmp_path / "out", lines)
    (folder / "plan.json").write_text(json.dumps({"prediction": {"step_seconds": 0.06, "lanes": {"compute": 0.05}}}))
    data = report.collect(folder)
    errors = data["training"]["series"]["error"]
    assert [value for _, value in errors] == [0.25, -0.02]  # the medians
    assert data["training"]["lane_errors"] == {"compute": [[4, 0.3], [8, -0.01]], "h2d": [[4, None], [8, 0.07]]}
    seen = look(report.page(data), tmp_path)
    assert seen["charts"]["Prediction error"] == 3
    assert "compute 50 ms 83 % 49.5 ms – -1.0 %" in shown(seen["text"])


def test_charts_hold_the_prediction_their_levels_and_lines_beyond_the_scale(tmp_path):
    lines = [
        train_row(step, step_tokens=640, predicted_step_seconds=0.05, tokens_per_second=9000 + step)
        for step in range(1, 9)
    ]
    lines += [
        dict(step=step, kind="forecast", step_error=0.3 + step / 100, compute_error=0.3, gpu_update_error=31.0)
        for step in (4, 8)
    ]
    seen = look(report.page(report.collect(write_rows(tmp_path / "out", lines))), tmp_path)
    assert seen["charts"]["Speed"] == 2
    assert seen["charts"]["Prediction error"] == 3  # a line far beyond is drawn at the edge
    assert seen["levels"]["Prediction error"] == 3  # both of 10 % and 0, although every error is positive
