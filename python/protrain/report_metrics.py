"""metrics.jsonl for the report: rows that count, and lines of a few hundred points that keep every extreme."""

import json
import math
from pathlib import Path
from statistics import median

from .report_values import number

_MOST_POINTS = 900  # of one line; extremes and gaps stay
_TREND_POINTS = 150
_MOST_MARKS = 300
_TABLE_ROWS = 100  # of each kind, evenly spaced
_TABLE_FAULTS = 40


def thin(points: list, most: int = _MOST_POINTS) -> list:
    """Fewer points, with the least and the greatest value and a gap (None) of every bucket kept."""
    if len(points) <= most:
        return points
    buckets = most // 3
    kept = {0, len(points) - 1}
    for bucket in range(buckets):
        part = range(bucket * len(points) // buckets, (bucket + 1) * len(points) // buckets)
        finite = [i for i in part if points[i][1] is not None]
        if finite:
            kept.update((min(finite, key=lambda i: points[i][1]), max(finite, key=lambda i: points[i][1])))
        if len(finite) < len(part):
            kept.add(next(i for i in part if points[i][1] is None))
    return [points[i] for i in sorted(kept)]


def trend(points: list) -> list:
    """Means of buckets; empty where the line itself is clear."""
    finite = [point for point in points if point[1] is not None]
    if len(finite) < 2 * _TREND_POINTS:
        return []
    parts = [
        finite[len(finite) * i // _TREND_POINTS : len(finite) * (i + 1) // _TREND_POINTS] for i in range(_TREND_POINTS)
    ]
    return [
        [math.fsum(at) / len(at), math.fsum(value) / len(value)]
        for at, value in (zip(*part, strict=True) for part in parts)
    ]


def _runs(steps: list[int]) -> list:
    """[first, last, count] of neighbouring steps; where there are too many runs the nearest ones are joined."""
    reach = 1
    while True:
        runs: list = []
        for step in steps:
            if runs and step - runs[-1][1] <= reach:
                runs[-1][1:] = [step, runs[-1][2] + 1]
            else:
                runs.append([step, step, 1])
        if len(runs) <= _MOST_MARKS:
            return runs
        reach *= 2


def read_rows(path: Path) -> tuple[dict, list[str]]:
    """The rows of metrics.jsonl by kind, in the order of the file, and what was wrong with it."""
    rows: dict = {"train": [], "evaluate": [], "forecast": []}
    notes, bad, other = [], [], 0
    whole, at = True, 0
    with path.open("rb") as file:
        for at, line in enumerate(file, 1):
            whole = line.endswith(b"\n")
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict) or type(row.get("step")) is not int or not 0 <= row["step"] < 2**53:
                bad.append(at)
            elif row.get("kind") in tuple(rows):
                rows[row["kind"]].append(row)
            else:
                other += 1
    if bad and bad[-1] == at and not whole:
        bad.pop()
        notes.append(f"metrics.jsonl: line {at}, the last one, is torn: the run is still writing, or was killed.")
    if bad:
        notes.append(f"metrics.jsonl: {len(bad)} unreadable lines are left out, the first is line {bad[0]}.")
    if other:
        notes.append(f"metrics.jsonl: {other} rows of a kind that this version does not know are left out.")
    return rows, notes


def live_rows(rows: list) -> tuple[list, list, list[int]]:
    """Rows that count, by step; rows of steps that a resumed run did again; first steps after a resume."""
    live, again, least = [], [], math.inf
    for row in reversed(rows):
        (live if row["step"] < least else again).append(row)
        least = min(least, row["step"])
    resumed = [now["step"] for before, now in zip(rows, rows[1:], strict=False) if now["step"] <= before["step"]]
    return live[::-1], again[::-1], sorted(set(resumed))


def _spaced(rows: list, most: int) -> list:
    if len(rows) <= most:
        return rows
    return [rows[i * (len(rows) - 1) // (most - 1)] for i in range(most)]


def training(rows: dict, prediction: dict) -> dict:
    """Lines, marks, table and sums of read_rows' rows. prediction: prediction_of's. Errors are those of the log: the
    share by which something took longer than predicted."""
    train, again, resumed = live_rows(rows["train"])
    evaluations, _, _ = live_rows(rows["evaluate"])
    forecasts, _, _ = live_rows(rows["forecast"])
    predicted = number(prediction.get("step_seconds"))

    def line(name: str, of: list = train) -> list:
        return [[row["step"], number(row.get(name))] for row in of if name in row]

    def error(row: dict) -> float | None:
        expected, took = number(row.get("predicted_step_seconds")) or predicted, number(row.get("step_seconds"))
        return took / expected - 1 if expected and took and expected > 0 and took > 0 else None

    def speed(row: dict) -> float | None:  # as predicted; a new plan in the middle of a run changes it
        tokens, expected = number(row.get("step_tokens")), number(row.get("predicted_step_seconds"))
        return tokens / expected if tokens and expected and expected > 0 else None

    logged = line("step_error", forecasts)  # medians, as the log has them
    errors = logged or [[row["step"], error(row)] for row in train]
    raw = {
        "loss": line("loss"),
        "eval_loss": line("eval_loss", evaluations),
        "loss_again": line("loss", again),
        "tokens_per_second": line("tokens_per_second"),
        "predicted_tokens_per_second": [[row["step"], speed(row)] for row in train if speed(row)],
        "grad_norm": line("grad_norm"),
        "learning_rate": line("learning_rate"),
        "device_peak_bytes": line("device_peak_bytes"),
        "host_peak_bytes": line("host_peak_bytes"),
        "error": errors if any(value is not None for _, value in errors) else [],
    }
    series = {name: thin(points) for name, points in raw.items()}
    series |= {f"{name}_trend": trend(raw[name]) for name in ("loss", "tokens_per_second", "grad_norm", "error")}
    skipped = [row for row in train if row.get("skipped") is True]
    infinite = [
        row for row in train if "loss" in row and None in (number(row["loss"]), number(row.get("grad_norm", 0)))
    ]
    shown = {id(row): row for row in _spaced(train, _TABLE_ROWS) + skipped[:_TABLE_FAULTS] + infinite[:_TABLE_FAULTS]}
    keys = ("loss", "grad_norm", "learning_rate", "tokens_per_second", "step_seconds")
    shown_rows = [
        {"step": row["step"], "skipped": row.get("skipped") is True, "error": error(row)}
        | {key: number(row.get(key)) for key in keys}
        for row in shown.values()
    ]
    shown_rows += [
        {"step": row["step"], "eval_loss": number(row.get("eval_loss"))} for row in _spaced(evaluations, _TABLE_ROWS)
    ]
    speeds = [value for _, value in raw["tokens_per_second"][1:] or raw["tokens_per_second"] if value is not None]
    expected = [value for _, value in raw["predicted_tokens_per_second"]]
    lane_errors: dict = {}
    for row in forecasts:
        for name in row:
            if name.endswith("_error") and (lane := name.removesuffix("_error")) != "step":
                lane_errors.setdefault(lane, []).append([row["step"], number(row[name])])
    last = train[-1] if train else {}
    ends = [value for _, value in raw["eval_loss"] if value is not None]
    return {
        "series": series,
        "marks": {
            "skipped": _runs([row["step"] for row in skipped]),
            "infinite": _runs([row["step"] for row in infinite]),
            "resumed": resumed[-_MOST_MARKS:],
        },
        "table": sorted(shown_rows, key=lambda row: row["step"]),
        "rows": len(train),
        "again": len(again),
        "skipped": len(skipped),
        "infinite": len(infinite),
        "last": {key: number(last.get(key)) for key in ("step", "epoch", "tokens", "loss")},
        "best_eval_loss": min(ends, default=None),
        "tokens_per_second": median(speeds) if speeds else None,
        "predicted_tokens_per_second": median(expected) if expected else None,
        "device_peak_bytes": max((value for _, value in raw["device_peak_bytes"] if value is not None), default=None),
        "host_peak_bytes": max((value for _, value in raw["host_peak_bytes"] if value is not None), default=None),
        "logged_errors": thin(logged, _TABLE_ROWS),
        "lane_errors": {lane: thin(points, _TABLE_ROWS) for lane, points in lane_errors.items()},
    }
