"""The plan and its prediction over a run: written before the first step, held against it, and chosen anew when far off."""

import json
import re

import pytest
import torch
from train_support import make_model, protrain, random_samples, rows, weights, write_config, write_tokens


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("wide"), hidden_size=128, intermediate_size=344, num_hidden_layers=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("data") / "t.ptk", random_samples([64] * 200))


def config_of(folder, model, data, name, **keys):
    return write_config(folder / f"{name}.yaml", **{**dict(
        model_name_or_path=str(model), train_file=str(data), output_dir=str(folder / name), cutoff_len=64,
        per_device_train_batch_size=4, learning_rate=1e-3, max_steps=12, logging_steps=1, save_steps=0, device="cpu",
        bf16=False), **keys})


def same_bits(output, straight):
    assert [row["loss"] for row in rows(output)] == [row["loss"] for row in rows(straight)]
    ours, theirs = weights(output), weights(straight)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_the_prediction_is_there_before_the_first_step_and_its_error_is_logged(wide, data, tmp_path):
    log = protrain("train", config_of(tmp_path, wide, data, "out")).stderr
    if "while the machine was measured" in log:
        assert "while the machine was measured, with pages of files" in log
    output = tmp_path / "out"
    plan = json.loads((output / "plan.json").read_text())
    prediction = plan["prediction"]
    assert prediction["measured"] and prediction["step_seconds"] > 0 and prediction["search"]["simulated"] >= 1
    events = json.loads((output / "trace-predicted.json").read_text())["traceEvents"]
    names = {event["name"] for event in events}
    assert {"forward layer 3 micro-batch 0", "backward layer 0 micro-batch 0"} <= names
    assert log.index("prediction") < log.index("step 1/")
    forecast, = rows(output, "forecast")
    assert forecast["step"] == 10 and forecast["step_error"] == pytest.approx(
        forecast["measured_step_seconds"] / forecast["predicted_step_seconds"] - 1)
    assert "step 10: " in log and "a step predicted" in log and "lanes compute" in log
    first = rows(output)[0]
    assert first["predicted_step_seconds"] == pytest.approx(prediction["step_seconds"])
    assert (output / "plan.json").stat().st_mtime <= (output / "metrics.jsonl").stat().st_mtime


def keep_a_profile_of_no_time(config, cache):
    """Of a machine that computes in no time: layers are recomputed rather than swapped, and the step takes many times as long as
    predicted, however busy this machine is."""
    protrain("profile", config, env={"PROTRAIN_CACHE": str(cache)})
    kept, = (cache / "profiles").glob("*.json")
    profile = json.loads(kept.read_text())
    for call in profile["rates"]["calls"]:
        call |= {key: call[key] / 100 for key in ("steady", "rested")}
    kept.write_text(json.dumps(profile))


def test_a_prediction_that_stays_far_off_is_replaced_and_the_plan_with_it_and_no_bit_changes(wide, data, tmp_path):
    cache = {"PROTRAIN_CACHE": str(tmp_path / "cache")}
    straight = config_of(tmp_path, wide, data, "straight", max_steps=40)
    protrain("train", straight, env=cache)
    whole = json.loads((tmp_path / "straight" / "plan.json").read_text())["memory"]["device"]["planned_bytes"]
    config = config_of(tmp_path, wide, data, "out", max_steps=40, prediction_steps=5, device_memory_limit=whole * 2 // 3)
    keep_a_profile_of_no_time(config, tmp_path / "cache")
    log = protrain("train", config, env=cache).stderr
    assert "measured before" in log
    assert "with the rates of its trace another plan is" in log or "the rates are those of its trace" in log, log
    same_bits(tmp_path / "out", tmp_path / "straight")
    train_rows = rows(tmp_path / "out")
    assert {row["unplanned_allocations"] for row in train_rows} == {0}
    assert train_rows[-1]["arena_high_water_bytes"] <= whole * 2 // 3
    forecasts = rows(tmp_path / "out", "forecast")
    errors = [abs(row["step_error"]) for row in forecasts]
    assert errors[0] > 1, errors
    # Times of a machine that others use too: some interval after the change is better foretold, if not every one.
    changed = [i for i, row in enumerate(forecasts) if row["predicted_step_seconds"] != forecasts[0]["predicted_step_seconds"]]
    assert changed and min(errors[i] for i in changed) < errors[0] / 2, errors


@pytest.mark.parametrize("given", [{"plan": '{"activation": "recompute", "offload_distance": 1}'}, {"recompute": True, "plan": '{"offload_distance": 1}'}],
                         ids=["modes", "recompute"])
def test_what_the_user_set_stays_when_the_plan_is_made_anew(wide, data, tmp_path, given):
    config = config_of(tmp_path, wide, data, "out", max_steps=40, prediction_steps=5, **given)
    keep_a_profile_of_no_time(config, tmp_path / "cache")
    log = protrain("train", config, env={"PROTRAIN_CACHE": str(tmp_path / "cache")}).stderr
    # With times as they are here keeping all would be much faster: nothing else limits this run.
    assert "with the rates of its trace another plan is" in log or "the rates are those of its trace" in log, log
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    layers = plan["activation"][1:-1]
    assert set(layers) <= {"recompute", "recompute_host"}, layers
    assert plan["offload_distance"] == 1


def test_an_automatic_micro_batch_splits_the_update_and_never_changes_it(wide, data, tmp_path):
    auto = write_config(tmp_path / "auto.yaml", model_name_or_path=str(wide), train_file=str(data),
                        output_dir=str(tmp_path / "auto"), cutoff_len=64, per_device_train_batch_size="auto", train_batch_size=12,
                        learning_rate=1e-3, max_steps=4, logging_steps=1, save_steps=0, device="cpu", bf16=False)
    log = protrain("train", auto).stderr
    assert "micro-batch of 1 rows" in log and "micro-batch of 2 rows" in log
    # Every size has calls of its own; links and updates are those of the machine.
    assert log.count("timing calls of") >= 2 and log.count("timing copies") == log.count("timing updates") == 1
    resolved = {}
    for line in (tmp_path / "auto" / "train_config.yaml").read_text().splitlines():
        key, value = line.split(": ", 1)
        resolved[key] = value
    rows_, accumulated = int(resolved["per_device_train_batch_size"]), int(resolved["gradient_accumulation_steps"])
    assert rows_ * accumulated == 12
    protrain("train", config_of(tmp_path, wide, data, "fixed", per_device_train_batch_size=rows_,
                                gradient_accumulation_steps=accumulated, max_steps=4))
    same_bits(tmp_path / "auto", tmp_path / "fixed")
    assert {row["unplanned_allocations"] for row in rows(tmp_path / "auto")} == {0}


@pytest.mark.parametrize("rows_, accumulated", [(1, 12), (6, 2)])
def test_an_automatic_micro_batch_stays_when_a_run_goes_on(wide, data, tmp_path, rows_, accumulated):
    cut = dict(per_device_train_batch_size=rows_, gradient_accumulation_steps=accumulated, max_steps=4, lr_scheduler_type="constant")
    protrain("train", config_of(tmp_path, wide, data, "straight", **cut))
    halves = config_of(tmp_path, wide, data, "halves", **cut, save_steps=2)
    protrain("train", halves, "--max_steps", "2")
    config = tmp_path / "auto.yaml"
    lines = [line for line in halves.read_text().splitlines() if "batch_size" not in line and "accumulation" not in line]
    config.write_text("\n".join([*lines, "per_device_train_batch_size: auto", "train_batch_size: 12"]) + "\n")
    log = protrain("train", config, "--resume-from-checkpoint").stderr
    assert "micro-batches of" not in log, log
    same_bits(tmp_path / "halves", tmp_path / "straight")
    other = {1: 2, 6: 3}[rows_]
    words = ("--per_device_train_batch_size", other, "--gradient_accumulation_steps", 12 // other, "--max_steps", 5)
    log = protrain("train", halves, "--resume-from-checkpoint", *words).stderr
    assert f"was made with micro-batches of {rows_} rows, this run has {other}" in log, log


def test_no_limit_on_memory_changes_the_order_of_accumulation(wide, data, tmp_path):
    config = config_of(tmp_path, wide, data, "out", gradient_accumulation_steps=4, max_steps=2)

    def leanest(*words):
        result = protrain("plan", config, "--device_memory_limit", 1, *words, check=False)
        assert result.returncode == 3
        return int(re.search(r"device memory: need [^(]*\((\d+) bytes\)", result.stderr).group(1))

    micro, layer = leanest(), leanest("--plan", '{"order": "layer"}')
    assert layer < micro, "no limit lies between the two orders"
    limit = ["--device_memory_limit", micro - 1]
    refused = protrain("train", config, *limit, check=False)
    assert refused.returncode == 3 and "plan: {order: layer} would fit" in refused.stderr, refused.stderr
    assert "layer by layer" in protrain("train", config, *limit, "--plan", '{"order": "layer"}').stderr
    assert "layer by layer" not in protrain("train", config, "--device_memory_limit", micro, "--overwrite_output_dir", "true").stderr
