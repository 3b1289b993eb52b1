"""What users of other systems ran into with memory planning (H01 to H12 of the expectations), each as a test here.

Elsewhere: H09 (a save at the plan's peak grows nothing) is in test_plans.py's exact limits, and again below with host memory; H06
(each of several ranks loads the whole model) cannot occur with one rank and comes with them.
"""

import json
import resource
import subprocess

import pytest
from train_support import BINARY, ROOT, make_model, protrain, random_samples, rows, weights, write_config, write_tokens

MIB = 1 << 20


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("wide"), hidden_size=128, intermediate_size=344, num_hidden_layers=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("data") / "t.ptk", random_samples([5 + i * 7 % 60 for i in range(400)]))


def config_of(folder, model, data, name="run", **keys):
    return write_config(folder / f"{name}.yaml", **{**dict(
        model_name_or_path=str(model), train_file=str(data), output_dir=str(folder / name), cutoff_len=64,
        per_device_train_batch_size=4, learning_rate=1e-3, max_steps=4, logging_steps=1, save_steps=0, device="cpu",
        bf16=False), **keys})


def train(folder, model, data, name="run", *words, **keys):
    protrain("train", config_of(folder, model, data, name, **keys), *words)
    return folder / name


def plan(folder, model, data, *words, check=True, **keys):
    result = protrain("plan", config_of(folder, model, data, "asked", **keys), "--json", *words, check=check)
    return json.loads(result.stdout)


def device_bytes(answer):
    return answer["memory"]["device"]["planned_bytes"]


def knobs(**values):
    return "--plan", json.dumps(values)


def test_h01_the_peak_said_before_is_the_peak_used(wide, data, tmp_path):
    """Buffers, activations, logits and libraries are in the figure: it is the high-water mark, to the byte."""
    least = device_bytes(plan(tmp_path, wide, data, "--device_memory_limit", "1", check=False))
    for i, keys in enumerate((dict(), dict(cutoff_len=16), dict(per_device_train_batch_size=1), dict(packing=True),
                              dict(gradient_accumulation_steps=4, max_grad_norm=0),
                              dict(device_memory_limit=str(least + least // 4)))):
        output = train(tmp_path, wide, data, f"run{i}", **keys)
        used = rows(output)[-1]["arena_high_water_bytes"]
        written = json.loads((output / "plan.json").read_text())
        assert used == written["memory"]["device"]["planned_bytes"], keys
        asked = plan(tmp_path, wide, data, "--plan", output / "plan.json", **keys)
        assert device_bytes(asked) == used, keys


def test_h02_the_automatic_plan_runs_whenever_any_runs_and_is_no_slower(wide, data, tmp_path):
    profile = tmp_path / "profile.json"
    protrain("profile", config_of(tmp_path, wide, data), "--output", profile)
    grid = [knobs(n_persist=persist, activation=mode, place={"n_resident": min(persist, resident), "embedding": ends, "head": ends},
                  n_buffer=4, gradient_slots=4, chunk_bytes=400000)
            for persist, resident in ((8, 8), (8, 0), (2, 0), (0, 0)) for mode in ("keep", "recompute", "swap") for ends in ("resident", "cpu")]
    for limit in ("16MiB", "9MiB", "6MiB", "4MiB", "3MiB"):
        where = "--profile", profile, "--device-memory", limit, "--host-memory", "1GiB"
        automatic = plan(tmp_path, wide, data, *where, check=False)
        by_hand = [plan(tmp_path, wide, data, *where, *words, check=False) for words in grid]
        running = [one for one in by_hand if one["fits"]]
        assert automatic["fits"] or not running, limit
        if running:
            best = min(one["prediction"]["step_seconds"] for one in running)
            assert automatic["prediction"]["step_seconds"] <= 1.03 * best, limit


def test_h03_a_cap_just_above_the_peak_holds_from_the_first_update_on(wide, data, tmp_path):
    least = device_bytes(plan(tmp_path, wide, data, "--device_memory_limit", "1", check=False))
    for more in (0, least // 2):
        cap = device_bytes(plan(tmp_path, wide, data, "--device_memory_limit", least + more))
        output = train(tmp_path, wide, data, f"run{more}", device_memory_limit=str(cap + cap // 50), max_steps=20)
        train_rows = rows(output)
        assert len(train_rows) == 20 and {row["unplanned_allocations"] for row in train_rows} == {0}
        assert max(row["arena_high_water_bytes"] for row in train_rows) <= cap + cap // 50


def test_h04_little_locked_memory_is_no_obstacle_or_is_said(wide, data, tmp_path):
    """A lower tier that needs more of the upper one: the disk tier is not there yet; pinning may be refused today."""
    config = config_of(tmp_path, wide, data)
    result = subprocess.run([BINARY, "train", config, *knobs(place={"n_resident": 0, "embedding": "cpu", "head": "cpu"})],
                            capture_output=True, text=True, timeout=120,
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536)))
    assert result.returncode in (0, 3), result.stderr


def test_h05_too_little_host_memory_is_refused_by_name_before_weights_are_read(wide, data, tmp_path):
    config = config_of(tmp_path, wide, data, host_memory_limit="20MiB")
    result = protrain("train", config, check=False)
    assert result.returncode == 3 and "host memory: need" in result.stderr and "bytes short" in result.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_h07_one_long_sample_among_short_ones_was_planned_for(wide, tmp_path):
    lengths = [8] * 200
    lengths.insert(50, 128)
    data = write_tokens(tmp_path / "t.ptk", random_samples(lengths))
    keys = dict(cutoff_len=128, per_device_train_batch_size=1, shuffle=False, max_steps=201)
    cap = device_bytes(plan(tmp_path, wide, data, **keys)) // 2
    output = train(tmp_path, wide, data, device_memory_limit=str(cap), **keys)
    train_rows = rows(output)
    assert len(train_rows) == 201 and max(row["step_tokens"] for row in train_rows) == 128
    assert {row["unplanned_allocations"] for row in train_rows} == {0}
    assert train_rows[-1]["arena_high_water_bytes"] <= cap


def test_h08_evaluation_takes_the_same_memory_however_much_there_is(wide, data, tmp_path):
    sizes, losses = [], []
    held_out = write_tokens(tmp_path / "held.ptk", random_samples([30] * 8, seed=5))
    fixed = train(tmp_path, wide, data, "first", validation_file=str(held_out), eval_steps=4) / "plan.json"
    for count in (4, 400):
        held_out = write_tokens(tmp_path / f"held{count}.ptk", random_samples([30] * count, seed=5))
        for batch in (1, 8):
            output = train(tmp_path, wide, data, f"run{count}x{batch}", "--plan", fixed, validation_file=str(held_out), eval_steps=4,
                           per_device_eval_batch_size=batch)
            sizes.append((batch, rows(output)[-1]["arena_high_water_bytes"]))
            losses.append((count, rows(output, "evaluate")[-1]["eval_loss"]))
    assert sizes[0] == sizes[2]
    assert losses[0][1] == pytest.approx(losses[1][1], rel=1e-6) and losses[2][1] == pytest.approx(losses[3][1], rel=1e-6)


def test_h09_saving_at_the_plans_peak_grows_neither_device_nor_host(wide, data, tmp_path):
    cap = device_bytes(plan(tmp_path, wide, data, "--device_memory_limit", device_bytes(plan(tmp_path, wide, data)) // 2))
    peaks = {}
    for name, save_steps in (("none", 0), ("each", 1)):
        output = train(tmp_path, wide, data, name, device_memory_limit=str(cap), save_steps=save_steps, max_steps=12)
        peaks[name] = rows(output)[-1]
    assert peaks["each"]["arena_high_water_bytes"] == peaks["none"]["arena_high_water_bytes"] <= cap
    assert peaks["each"]["host_peak_bytes"] <= peaks["none"]["host_peak_bytes"] + 32 * MIB


def test_h10_a_model_that_fits_only_with_offload_is_planned_and_the_reason_said(wide, data, tmp_path):
    whole = plan(tmp_path, wide, data)
    state = whole["memory"]["state_bytes"]
    limit = state * 6 // 10
    lean = plan(tmp_path, wide, data, "--device_memory_limit", limit)
    assert lean["fits"] and device_bytes(lean) <= limit
    assert "cpu" in lean["plan"]["place"] and lean["prediction"]["search"]["simulated"] >= 1
    text = protrain("plan", config_of(tmp_path, wide, data), "--device_memory_limit", limit).stdout
    assert "binds" in text and "on the host" in text


def test_h11_will_it_fit_is_answered_without_the_machine_and_with_its_profile_to_the_byte(wide, data, tmp_path):
    answer = plan(tmp_path, wide, data, "--hardware", ROOT / "hardware" / "h200.json")
    assert answer["fits"] and answer["estimate"]
    assert {"weights", "activations", "workspace"} <= answer["memory"]["device"]["by_tag"].keys()
    profile = tmp_path / "profile.json"
    protrain("profile", config_of(tmp_path, wide, data), "--output", profile)
    output = train(tmp_path, wide, data)
    known = plan(tmp_path, wide, data, "--profile", profile, "--device-memory", "1GiB", "--host-memory", "1GiB", "--plan", output / "plan.json")
    assert not known["estimate"] and device_bytes(known) == rows(output)[-1]["arena_high_water_bytes"]


def test_h12_every_chunk_size_and_placement_trains_the_same_model(wide, data, tmp_path):
    import torch

    first = None
    for i, chunk in enumerate((1024, 32768, 400000, 64 * MIB)):
        for j, place in enumerate(({"n_resident": 0, "embedding": "cpu", "head": "cpu"},
                                   {"n_resident": 0, "embedding": "resident", "head": "resident"},
                                   {"embedding": "resident", "head": "cpu"})):
            output = train(tmp_path, wide, data, f"run{i}{j}", *knobs(chunk_bytes=chunk, place=place), max_steps=3)
            result = [row["loss"] for row in rows(output)], weights(output)
            first = first or result
            assert result[0] == first[0], (chunk, place)
            assert all(torch.equal(result[1][key], first[1][key]) for key in first[1]), (chunk, place)
