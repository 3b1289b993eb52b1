"""`protrain report`: one self-contained HTML page about a run: losses, speed, memory, timelines, plan.

Everything in the folder is optional, and may be torn or of another version: what cannot be shown is named on the page.
Values reach the page as JSON only and are set as text there, so nothing in a run can become markup. Exit codes: 2
arguments or a folder that is no run, 5 files that cannot be read or written.
"""

import argparse
import contextlib
import html
import json
import os
import re
import sys
from pathlib import Path

from .errors import CONFIG, FILES, INTERRUPTED, CommandError, one_line
from .report_metrics import read_rows, training
from .report_plan import memory_of, plan_of, prediction_of, traces_of

_PAGE = Path(__file__).parent / "report_page"
_MARK = "<!doctype html><!-- protrain report -->"  # what --output may be written over
_MOST_CONFIG = 100_000  # characters


def collect(run: Path) -> dict:
    """All that the page shows. CommandError when the folder is no run's."""
    if not run.is_dir():
        raise CommandError(CONFIG, f"{run}: is {'no folder' if run.exists() else 'not there'}; give a run's output_dir")
    metrics, plan_path, config = (run / name for name in ("metrics.jsonl", "plan.json", "train_config.yaml"))
    for path in (metrics, plan_path, config):
        if path.exists() and not path.is_file():
            raise CommandError(FILES, f"{path}: is a folder or a device; it must be a file")
    if not metrics.exists() and not plan_path.exists():
        raise CommandError(CONFIG, f"{run}: holds neither metrics.jsonl nor plan.json; give a run's output_dir")
    notes: list[str] = []
    rows: dict = {"train": [], "evaluate": [], "forecast": []}
    if metrics.exists():
        rows, notes = read_rows(metrics)
    else:
        notes.append("metrics.jsonl is not there: the run has not begun.")
    plan: dict = {}
    if plan_path.exists():
        try:
            plan = json.loads(plan_path.read_text(encoding="utf-8", errors="replace"))
            if not isinstance(plan, dict):
                raise ValueError("it is no JSON object")
        except (ValueError, RecursionError) as error:
            plan = {}
            notes.append(f"plan.json: cannot be read: {one_line(error)}")
    prediction = prediction_of(plan)
    predicted, measured = traces_of(run, notes)
    text = config.read_text(encoding="utf-8", errors="replace")[:_MOST_CONFIG] if config.exists() else ""
    found = re.search(r'^(?:model_name_or_path|config_name): "?([^"\n]+)"?$', text, re.MULTILINE)
    return {
        "name": run.resolve().name or str(run),
        "folder": str(run.resolve()),
        "model": found[1] if found else "",
        "config": text,
        "notes": notes,
        "training": training(rows, prediction),
        "plan": plan_of(plan) if plan else None,
        "prediction": prediction,
        "memory": memory_of(plan),
        "predicted": predicted,
        "measured": measured,
    }


def page(data: dict) -> str:
    """The whole page. `<` is escaped in the JSON, so no value can end its script element."""

    def part(name: str) -> str:
        return (_PAGE / name).read_text(encoding="utf-8")

    values = {
        "title": html.escape(data["name"].encode("utf-8", "replace").decode()),
        "style": part("style.css"),
        "data": json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        "script": "".join(part(name) for name in ("charts.js", "timeline.js", "page.js")),
    }
    return _MARK + re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], part("page.html"))


def _may_write(output: Path) -> None:
    if output.exists() and not output.is_file():
        raise CommandError(CONFIG, f"--output: {output} is a folder or a device; it must be a file")
    if output.exists() and output.stat().st_size > 0:
        with output.open("rb") as file:
            if file.read(len(_MARK)) != _MARK.encode():
                raise CommandError(CONFIG, f"--output: {output} is there and no report; give another name")


def _write(output: Path, text: str) -> None:
    """Whole or not at all: a browser may have the old one open."""
    if not output.parent.is_dir():
        raise CommandError(CONFIG, f"--output: {output}: there is no folder {output.parent}")
    real = output.resolve()  # a link stays one
    aside = real.with_name(f".{real.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(real)
    except OSError as error:
        raise CommandError(FILES, f"{output}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def _say(line: str) -> None:
    print(line.replace("\n", " "), file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="protrain report", description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="output_dir of a run")
    parser.add_argument("--output", type=Path, help="file to write; report.html in that folder unless given")
    args = parser.parse_args(argv)
    output = args.output or args.run / "report.html"
    try:
        data = collect(args.run)
        _may_write(output)
        _write(output, page(data))
    except CommandError as error:
        _say(f"protrain: error: {error}")
        return error.code
    except OSError as error:
        _say(f"protrain: error: {error.filename or output}: {error.strerror or error}")
        return FILES
    except KeyboardInterrupt:
        return INTERRUPTED
    _say(f"report written to {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
