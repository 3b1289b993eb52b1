"""Plans set by hand and by limits: what they promise holds, and none of them changes a bit."""

import json
import signal
import threading
import time

import pytest
import torch
from train_support import make_model, protrain, rows, start, weights, write_config

STEPS = 10
# Everything on the device and kept.
RESIDENT = {"chunk_bytes": "64MiB", "n_persist": 1, "activation": "keep", "place": {"n_resident": 1, "embedding": "resident", "head": "resident"}}


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("wide"), hidden_size=128, intermediate_size=344, num_hidden_layers=4)


def write(path, model, data, output, plan=None, **more):
    keys = dict(dict(model_name_or_path=str(model), train_file=str(data), validation_file=str(data), output_dir=str(output),
                     cutoff_len=32, packing=True, per_device_train_batch_size=2, gradient_accumulation_steps=2,
                     learning_rate=1e-3, max_steps=STEPS, logging_steps=1, save_steps=4, eval_steps=5, warmup_steps=2,
                     device="cpu", bf16=False), **more)
    write_config(path, **keys)
    if plan is not None:
        path.write_text(path.read_text() + "plan:\n" + "".join(f"  {key}: {json.dumps(value)}\n" for key, value in plan.items()))
    return path


def run(tmp_path, name, model, data, *words, **more):
    output = tmp_path / name
    protrain("train", write(tmp_path / f"{name}.yaml", model, data, output, **more), *words)
    return output


def plan_of(output):
    return json.loads((output / "plan.json").read_text())


def planned(output, tier="device"):
    return plan_of(output)["memory"][tier]["planned_bytes"]


def assert_same_bits(output, straight, first=0):
    ours, theirs = weights(output), weights(straight)
    assert ours.keys() == theirs.keys()
    for key in theirs:
        assert torch.equal(ours[key], theirs[key]), key
    for kind, names in (("train", ("step", "loss", "grad_norm")), ("evaluate", ("step", "eval_loss"))):
        table = [[tuple(row[name] for name in names) for row in rows(folder, kind) if row["step"] > first]
                 for folder in (output, straight)]
        assert table[0] == table[1], kind


def assert_kept_to_plan(output):
    train = rows(output)
    assert {row["unplanned_allocations"] for row in train} == {0}
    assert train[-1]["arena_high_water_bytes"] == planned(output)


STREAMED = dict(chunk_bytes="1MiB", n_persist=0, n_buffer=2, activation="swap", place=dict(embedding="cpu", head="cpu"))


def test_a_plan_by_hand_in_yaml_as_text_and_as_a_file(wide, long_data, tmp_path):
    straight = run(tmp_path, "straight", wide, long_data, plan=RESIDENT)
    yaml = run(tmp_path, "yaml", wide, long_data, plan=STREAMED)
    text = run(tmp_path, "text", wide, long_data, "--plan", json.dumps(STREAMED))
    file = run(tmp_path, "file", wide, long_data, "--plan", yaml / "plan.json")
    for output in (yaml, text, file):
        assert_same_bits(output, straight)
        assert_kept_to_plan(output)
        for key in ("chunk_bytes", "n_persist", "n_buffer", "activation", "place"):
            assert plan_of(output)[key] == plan_of(yaml)[key], key
    assert {key: value for key, value in plan_of(file).items() if key not in ("memory", "prediction")} == {
        key: value for key, value in plan_of(yaml).items() if key not in ("memory", "prediction")}
    assert planned(yaml) < planned(straight) / 2
    plan = plan_of(yaml)
    assert plan["n_persist"] == 0 and plan["n_buffer"] == 2 and set(plan["place"]) == {"cpu"}
    assert plan["gradient_slots"] >= 1  # what was not set is chosen


def test_exactly_the_peak_is_enough_and_one_byte_less_is_refused(model, long_data, tmp_path):
    keys = dict(plan=dict(STREAMED, chunk_bytes="4KiB", n_buffer=9), max_steps=200, save_steps=50, eval_steps=50, save_total_limit=2)
    free = run(tmp_path, "free", model, long_data, **keys)
    peak = planned(free)
    capped = run(tmp_path, "capped", model, long_data, device_memory_limit=peak, **keys)
    assert_same_bits(capped, free)
    assert_kept_to_plan(capped)
    config = write(tmp_path / "less.yaml", model, long_data, tmp_path / "less", device_memory_limit=peak - 1, **keys)
    result = protrain("train", config, check=False)
    assert result.returncode == 3, result.stderr
    for word in (f"{peak} bytes", f"{peak - 1} bytes", "1 bytes short", "would fit"):
        assert word in result.stderr, result.stderr
    assert not (tmp_path / "less" / "metrics.jsonl").exists()


def test_without_a_plan_every_limit_that_some_plan_meets_is_met(wide, long_data, tmp_path):
    straight = run(tmp_path, "straight", wide, long_data, plan=RESIDENT)
    whole = planned(straight)
    for share in (0.75, 0.5):
        output = run(tmp_path, f"share{share}", wide, long_data, chunk_bytes="64KiB", device_memory_limit=int(whole * share))
        assert planned(output) <= whole * share
        assert_same_bits(output, straight)
        assert_kept_to_plan(output)


def test_host_memory_is_bounded(wide, long_data, tmp_path):
    config = write(tmp_path / "host.yaml", wide, long_data, tmp_path / "host", host_memory_limit="40MiB")
    result = protrain("train", config, check=False)
    assert result.returncode == 3 and "host memory" in result.stderr and "bytes short" in result.stderr, result.stderr
    enough = result.stderr.split("host_memory_limit: ")[-1].split()[0]
    protrain("train", config, "--host_memory_limit", enough, "--max_steps", "1")


def test_kill_9_and_resume_under_other_plans(wide, long_data, tmp_path):
    straight = run(tmp_path, "straight", wide, long_data)
    output = tmp_path / "killed"
    plans = [STREAMED, dict(activation="recompute", n_persist=0, chunk_bytes="128KiB"),
             dict(place=dict(n_resident=1, embedding="cpu"), activation="keep_light", chunk_bytes="64KiB")]
    for i, plan in enumerate(plans):
        config = write(tmp_path / "killed.yaml", wide, long_data, output, plan=plan, save_steps=1)
        process = start("train", config, "--resume-from-checkpoint", env={"PROTRAIN_FILE_FAULT": "sleep=0.02"})
        deadline = time.monotonic() + 60
        while not (output / f"checkpoint-{2 * i + 2}").exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, errors
    config = write(tmp_path / "killed.yaml", wide, long_data, output, plan=dict(activation="recompute_host"), save_steps=1)
    protrain("train", config, "--resume-from-checkpoint")
    assert_same_bits(output, straight)


INVALID = {
    "unknown": (dict(n_persit=3), ("n_persit", "n_persist")),
    "mode": (dict(activation="rekompute"), ("activation", "rekompute", "recompute")),
    "persist": (dict(n_persist=1000), ("n_persist", "1000")),
    "slots": (dict(n_persist=0, n_buffer=0, chunk_bytes="64KiB"), ("n_buffer", "0")),
    "resident": (dict(n_persist=1, place=dict(n_resident=3), chunk_bytes="64KiB"), ("n_resident", "3")),
    "type": (dict(order=["layer"]), ("order",)),
    "chunks": (dict(place=["cpu"]), ("place", "1")),
}


@pytest.mark.parametrize("name", INVALID)
def test_plans_that_cannot_be_are_refused_with_the_reason(name, wide, long_data, tmp_path):
    plan, words = INVALID[name]
    result = protrain("train", write(tmp_path / "c.yaml", wide, long_data, tmp_path / "out", plan=plan), check=False)
    assert result.returncode == 2, result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("protrain: error: ")]
    assert len(errors) == 1 and all(word in errors[0] for word in ("plan", *words)), result.stderr
    if name not in ("persist", "slots"):  # their bounds follow from the whole plan
        assert "profile" not in result.stderr  # before the machine is measured


def test_a_plan_that_is_no_file_or_set_twice_is_refused(wide, long_data, tmp_path):
    config = write(tmp_path / "c.yaml", wide, long_data, tmp_path / "out")
    for words, expected in ((["--plan", "absent.json"], "absent.json"), (["--plan", "{"], "JSON"),
                            (["--plan", '{"activation": "swap"}', "--recompute", "true"], "recompute")):
        result = protrain("train", config, *words, check=False)
        assert result.returncode == 2 and expected in result.stderr, result.stderr


def test_host_memory_stays_within_the_plan(tmp_path, long_data):
    # Large enough that a tier counted twice or not at all would show: 27 M parameters, 16 bytes each.
    model = make_model(tmp_path / "model", hidden_size=768, intermediate_size=2304, num_hidden_layers=4)
    output = tmp_path / "out"
    config = write(tmp_path / "c.yaml", model, long_data, output, max_steps=6, save_steps=0, eval_steps=3,
                   plan=dict(STREAMED, chunk_bytes="32MiB"))
    process = start("train", config)
    used = []

    def watch():
        while process.poll() is None:
            try:
                fields = dict(line.split(":", 1) for line in open(f"/proc/{process.pid}/status").read().splitlines())
                used.append(sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem")))
            except (OSError, KeyError):
                pass
            time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    _, errors = process.communicate(timeout=280)
    thread.join()
    assert process.returncode == 0, errors
    assert_kept_to_plan(output)
    total = planned(output, "host")
    host = json.loads((output / "plan.json").read_text())["memory"]["host"]
    assert 0 < host["before_plan_bytes"] < total  # what measuring took is not the run's
    print(f"{max(used) / 2**20:.0f} MiB used, {total / 2**20:.0f} MiB planned")
    assert max(used) <= total + max(total * 0.05, 300 * 2**20)
    assert max(used) >= total * 0.5  # the plan is no empty promise
