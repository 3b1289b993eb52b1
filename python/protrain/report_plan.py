"""plan.json and the traces for the report."""

import json
import math
import re
from pathlib import Path

from .errors import one_line
from .report_values import as_list, number, numbers, table

_MOST_TRACES = 3  # the newest ones
_MOST_SPANS = 200_000  # of one trace


def memory_of(plan: dict) -> dict | None:
    memory = table(plan.get("memory"))
    if not memory:
        return None
    out: dict = {"state_bytes": number(memory.get("state_bytes"))}
    for tier, of_tier in memory.items():
        if isinstance(of_tier, dict):
            out[str(tier)] = numbers(of_tier) | {"by_tag": numbers(of_tier.get("by_tag"))}
    return out


def plan_of(plan: dict) -> dict:
    """Knobs: whatever is a plain value, so that a later version's show too."""
    knobs = {str(key): value for key, value in plan.items() if isinstance(value, (str, int, float, bool))}
    modes = [str(mode) for mode in as_list(plan.get("activation"))]
    return {
        "knobs": {key: value if isinstance(value, (str, bool)) else number(value) for key, value in knobs.items()},
        "activation": modes[1:-1],  # of blocks; the embedding's and the head's say nothing
        "place": [str(place) for place in as_list(plan.get("place"))],
    }


def prediction_of(plan: dict) -> dict:
    given = table(plan.get("prediction"))
    runner_up, search = table(given.get("runner_up")), table(given.get("search"))
    out: dict = {key: number(given.get(key)) for key in ("step_seconds", "tokens_per_second")}
    out |= {key: str(given[key]) for key in ("source", "binding") if isinstance(given.get(key), str)}
    out["measured"] = given.get("measured") if isinstance(given.get("measured"), bool) else None
    out["lanes"] = numbers(given.get("lanes"))
    out["search"] = numbers(search)
    out["runner_up"] = (
        {"step_seconds": number(runner_up.get("step_seconds")), "why": str(runner_up.get("why", ""))}
        if runner_up
        else None
    )
    return out if given else {}


def read_trace(path: Path) -> dict:
    """Lanes, names and spans [lane, name, begin, seconds] of a Chrome trace, in the order of their beginning."""
    root = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    events = as_list(root.get("traceEvents") if isinstance(root, dict) else root)
    lane_names: dict = {}
    spans = []
    for event in map(table, events):
        lane = event.get("tid")
        if not isinstance(lane, (int, str)):
            continue
        if event.get("ph") == "M" and event.get("name") == "thread_name":
            lane_names[lane] = str(table(event.get("args")).get("name", lane))
        begin, took = number(event.get("ts")), number(event.get("dur"))
        if event.get("ph") == "X" and begin is not None and took is not None and took >= 0:
            spans.append((begin, took, lane, str(event.get("name", ""))))
    if not spans:
        raise ValueError("it holds no tasks")
    spans.sort(key=lambda span: span[:2])
    used = {span[2] for span in spans}
    lanes = [lane for lane in lane_names if lane in used]
    lanes += sorted(used - set(lanes), key=str)
    names: dict = {}
    out = [
        [lanes.index(lane), names.setdefault(name, len(names)), round(begin / 1e6, 9), round(took / 1e6, 9)]
        for begin, took, lane, name in spans[:_MOST_SPANS]
    ]
    busy, reached = dict.fromkeys(lanes, 0.0), dict.fromkeys(lanes, -math.inf)
    for begin, took, lane, _ in spans:
        busy[lane] += max(0.0, begin + took - max(begin, reached[lane])) / 1e6
        reached[lane] = max(reached[lane], begin + took)
    return {
        "lanes": [lane_names.get(lane, str(lane)) for lane in lanes],
        "names": list(names),
        "spans": out,
        "left_out": len(spans) - len(out),
        "seconds": max(begin + took for begin, took, _, _ in spans) / 1e6,
        "busy": {lane_names.get(lane, str(lane)): seconds for lane, seconds in busy.items()},
    }


def traces_of(run: Path, notes: list[str]) -> tuple[dict | None, list]:
    """The predicted one, and the measured ones, newest first; what cannot be read goes to the notes."""

    def read(path: Path) -> dict | None:
        try:
            if not path.is_file():
                raise ValueError("it is no file")
            return read_trace(path)
        except (OSError, ValueError, RecursionError) as error:
            notes.append(f"{path.name}: cannot be read: {one_line(error)}")
            return None

    found = [
        (int(match[1]), path)
        for path in run.iterdir()
        if (match := re.fullmatch(r"trace-step-(\d{1,15})\.json", path.name))
    ]
    measured = []
    for step, path in sorted(found, reverse=True)[:_MOST_TRACES]:
        if trace := read(path):
            measured.append(trace | {"step": step})
    predicted = run / "trace-predicted.json"
    return read(predicted) if predicted.exists() else None, measured
