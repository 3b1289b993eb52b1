#!/usr/bin/env python3
"""Trains shapes under plans on one GPU: run.py TOKENS.ptk OUT CASE... [--list].

A case is a line of cases.json: model folder (config.json alone: random weights), rows of 4096 tokens a step, rows a micro-batch,
plan (knobs, or nothing: the automatic one), limits, steps. Each runs as `protrain train`, is ended once its steps are in
metrics.jsonl (no export: disks are small), and leaves OUT/CASE.{log,jsonl,plan.json,trace.json.gz,predicted.json.gz} and a row in OUT/summary.json:
median tokens/s of steps 3 and on, peaks, exposed time of the compute lane by what it waits for (exposed.py).
"""
import gzip, json, os, pathlib, signal, statistics, subprocess, sys, threading, time

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here))
import exposed


def used_gpu_bytes(pid):
    out = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"], capture_output=True, text=True).stdout
    rows = [line.split(",") for line in out.splitlines() if "," in line]
    whole = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True).stdout
    return {"of_process": next((int(m) << 20 for p, m in rows if int(p) == pid), None), "of_gpu": int(whole.split()[0]) << 20}


def host_bytes(pid):
    try:
        fields = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status") if ":" in line)
        return sum(int(fields[key].split()[0]) << 10 for key in ("RssAnon", "RssShmem"))
    except (OSError, KeyError):  # ended
        return None


def rows_of(metrics):
    try:
        lines = metrics.read_text().splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            pass
    return [row for row in rows if row.get("kind") == "train"]


def copy_lines(source, log, began):
    """Each line with the seconds since the program was started."""
    for line in source:
        log.write(f"{time.time() - began:7.2f} {line}")
        log.flush()


def run(name, case, tokens, out, work):
    folder = work / name
    trace_step = case.get("trace", case["steps"])
    command = ["protrain", "train", str(here / ".." / "main_job" / "train.yaml"), "--config_name", str((here / case["model"]).resolve()), "--train_file", tokens,
               "--output_dir", str(folder), "--per_device_train_batch_size", str(case["micro"]),
               "--gradient_accumulation_steps", str(case["rows"] // case["micro"]), "--max_steps", str(case["steps"] + 1000),
               "--learning_rate", "1.0e-5", "--recompute", "auto", "--trace_steps", str(trace_step)]
    if "plan" in case:
        plan = out / f"{name}.knobs.json"
        plan.write_text(json.dumps(case["plan"], indent=1))
        command += ["--plan", str(plan)]
    for key in ("device_memory_limit", "host_memory_limit"):
        if key in case:
            command += [f"--{key}", case[key]]
    command += case.get("extra", [])
    began = time.time()
    with open(out / f"{name}.log", "w") as log:
        log.write("# " + " ".join(command) + "\n")
        log.flush()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        reader = threading.Thread(target=copy_lines, args=(process.stdout, log, began))
        reader.start()
        before, peak, memory, first = 0, 0, None, None
        while process.poll() is None and time.time() - began < case.get("seconds", 240):
            time.sleep(0.5)
            resident = host_bytes(process.pid) or 0
            if (folder / "plan.json").exists():
                peak = max(peak, resident)
            else:  # while the machine is measured
                before = max(before, resident)
            rows = rows_of(folder / "metrics.jsonl")
            if rows and first is None:
                first = time.time() - began
            if len(rows) >= 2 and memory is None:
                memory = used_gpu_bytes(process.pid)
            if len(rows) >= case["steps"]:
                time.sleep(1.0)
                break
        memory = memory or used_gpu_bytes(process.pid)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join()
    rows = rows_of(folder / "metrics.jsonl")
    summary = {"case": name, "steps": len(rows), "seconds_to_first_step": first, "host_peak_before_plan": before, "host_peak_resident": peak, "gpu": memory, "code": process.returncode}
    steady = [row["tokens_per_second"] for row in rows if row["step"] >= 3]
    if steady:
        summary |= {"tokens_per_second": statistics.median(steady), "step_seconds": statistics.median(row["step_seconds"] for row in rows if row["step"] >= 3),
                    "model_tflops": statistics.median(row["model_tflops"] for row in rows if row["step"] >= 3), "losses": [row["loss"] for row in rows], "last": rows[-1]}
    if (folder / "trace-predicted.json").exists():
        (out / f"{name}.predicted.json.gz").write_bytes(gzip.compress((folder / "trace-predicted.json").read_bytes()))
    for file, to in (("metrics.jsonl", f"{name}.jsonl"), ("plan.json", f"{name}.plan.json")):
        if (folder / file).exists():
            (out / to).write_bytes((folder / file).read_bytes())
    if "step_seconds" in summary and (out / f"{name}.plan.json").exists():
        plan = json.loads((out / f"{name}.plan.json").read_text())
        summary["plan_memory"] = plan.get("memory")
        summary["predicted_device_bytes"] = plan.get("predicted_device_bytes")
        if prediction := plan.get("prediction"):
            summary["prediction"] = prediction
            summary["prediction_error"] = summary["step_seconds"] / prediction["step_seconds"] - 1
    for trace in folder.glob("trace-step-*.json"):
        text = trace.read_bytes()
        summary["exposed"] = exposed.exposed(json.loads(text))
        (out / f"{name}.trace.json.gz").write_bytes(gzip.compress(text))
    subprocess.run(["rm", "-rf", str(folder)])
    return summary


def main():
    cases = json.loads((here / "cases.json").read_text())
    tokens, out, names = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    out.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(os.environ.get("WORK", "/tmp")) / "offload"
    work.mkdir(parents=True, exist_ok=True)
    summaries = []
    for name in names:
        summaries.append(run(name, cases[name], tokens, out, work))
        (out / "summary.json").write_text(json.dumps(summaries, indent=1))
        brief = {key: value for key, value in summaries[-1].items() if key not in ("last", "plan_memory")}
        print(json.dumps(brief), flush=True)
        if summaries[-1]["steps"] == 0:
            print((out / f"{name}.log").read_text()[-2500:], flush=True)


main()
