#!/usr/bin/env python3
"""again.py MODEL_FOLDER CASES.json RUNS.json PROFILE.json.gz tokens.ptk: predicts plans by hand that plan_runs has run once more, with this
program and the profile of those runs. Knobs that a plan leaves open are searched, within the chunks and slots that the run had."""

import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parents[2]
OF_CHUNKS = ("chunk_bytes", "n_persist", "n_buffer", "gradient_slots", "order")


def words(keys):
    for key, value in keys.items():
        yield f"--{key}"
        yield value if isinstance(value, str) else json.dumps(value)


def main():
    model, cases, runs, profile, tokens = sys.argv[1:]
    keys_of = {case["name"]: case["keys"] for case in json.loads(pathlib.Path(cases).read_text())}
    with tempfile.TemporaryDirectory() as folder:
        plain = pathlib.Path(folder) / "profile.json"
        plain.write_bytes(gzip.decompress(pathlib.Path(profile).read_bytes()))
        for run in json.loads(pathlib.Path(runs).read_text()):
            keys = keys_of[run["case"]]
            if "busy" not in run or "plan" not in keys:
                continue
            keys = dict(keys, plan={**{knob: run["plan"][knob] for knob in OF_CHUNKS}, **keys["plan"]})
            command = [TOP / "build/release/bin/protrain", "plan", TOP / "bench/main_job/train.yaml", "--json", "--profile", plain,
                       "--device-memory", "139GiB", "--host-memory", "121GiB", "--config_name", model, "--train_file", tokens,
                       "--output_dir", folder, "--recompute", "auto", *words(keys)]
            answer = json.loads(subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout)
            now, then = answer["prediction"], run["plan"]["prediction"]
            compute = run["busy"]["compute"]
            print(f"{run['case']}: step {now['step_seconds']:.3f} s, measured {run['step_seconds']:.3f}; compute works"
                  f" {now['lanes']['compute']:.3f} s, measured {compute:.3f} ({100 * (compute / now['lanes']['compute'] - 1):+.1f} %;"
                  f" when it ran {then['lanes']['compute']:.3f}, {100 * (compute / then['lanes']['compute'] - 1):+.1f} %)")


if __name__ == "__main__":
    main()
