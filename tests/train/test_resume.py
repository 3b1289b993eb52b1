"""A run that was stopped, by whatever, goes on to the very bits of one that was not."""

import random
import signal
import time

import pytest
import torch
from train_support import protrain, random_samples, rows, start, weights, write_config, write_tokens

STEPS = 12


def keys(model, data, output, **more):
    return dict(dict(model_name_or_path=str(model), train_file=str(data), validation_file=str(data),
                     output_dir=str(output), cutoff_len=32, packing=True, per_device_train_batch_size=2,
                     gradient_accumulation_steps=2, learning_rate=1e-3, max_steps=STEPS, logging_steps=1, save_steps=3,
                     eval_steps=6, warmup_steps=2, device="cpu"), **more)


def run(tmp_path, name, model, data, *words, **more):
    output = tmp_path / name
    config = write_config(tmp_path / f"{name}.yaml", **keys(model, data, output, **more))
    protrain("train", config, *words)
    return output


def wait_for_banner(process):
    for line in process.stderr:
        if "pinned host memory" in line:
            return
    raise AssertionError("no banner")


def assert_same_end(output, straight):
    ours, theirs = weights(output), weights(straight)
    assert ours.keys() == theirs.keys()
    for key in theirs:
        assert torch.equal(ours[key], theirs[key]), key
    assert [(row["step"], row["loss"], row["grad_norm"]) for row in rows(output)] == [
        (row["step"], row["loss"], row["grad_norm"]) for row in rows(straight)]
    assert [row["eval_loss"] for row in rows(output, "evaluate")] == [row["eval_loss"] for row in rows(straight, "evaluate")]


@pytest.mark.parametrize("bf16", [False, True])
def test_resume_at_any_checkpoint_is_bit_identical(bf16, model, long_data, tmp_path):
    straight = run(tmp_path, "straight", model, long_data, bf16=bf16)
    assert len(rows(straight)) == STEPS
    for step in (3, 9):
        # Other neutral knobs too: chunk size and recompute change no bit.
        output = tmp_path / f"from{step}"
        output.mkdir()
        config = write_config(tmp_path / "again.yaml", **keys(model, long_data, output, bf16=bf16, chunk_bytes=4096,
                                                              recompute=True))
        protrain("train", config, "--resume-from-checkpoint", straight / f"checkpoint-{step}")
        ours, theirs = weights(output), weights(straight)
        for key in theirs:
            assert torch.equal(ours[key], theirs[key]), (step, key)
        assert [row["loss"] for row in rows(output)] == [row["loss"] for row in rows(straight)][step:]


def test_sigterm_and_sigint_leave_a_checkpoint_that_goes_on_to_the_same_bits(model, long_data, tmp_path):
    straight = run(tmp_path, "straight", model, long_data, bf16=False)
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    output = tmp_path / "stopped"
    config = write_config(tmp_path / "stopped.yaml", **keys(model, long_data, output, bf16=False))
    codes = []
    for number, code in [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGTERM, 143)]:
        # Every file operation is slowed, so that the run is long enough to be hit in steps, evaluation and saves.
        process = start("train", config, "--resume-from-checkpoint", env={"PROTRAIN_FILE_FAULT": "sleep=0.02"})
        wait_for_banner(process)
        time.sleep(draw.uniform(0.0, 0.7))
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
        assert process.returncode in (code, 0), errors
        codes.append(process.returncode)
        assert any(output.glob("checkpoint-*")), errors
        if process.returncode == 0:
            break
    assert any(codes), "no signal came in time"
    protrain("train", config, "--resume-from-checkpoint")
    assert_same_end(output, straight)


@pytest.mark.parametrize("where", ["evaluation", "accumulation"])
def test_a_signal_ends_long_work_within_a_micro_batch(where, model, tmp_path):
    data = write_tokens(tmp_path / "t.ptk", random_samples([30] * 40_000))
    output = tmp_path / "out"
    config = write_config(tmp_path / "c.yaml", **keys(
        model, data, output, bf16=False, packing=False, eval_steps=0, per_device_train_batch_size=4, max_steps=2,
        per_device_eval_batch_size=4, gradient_accumulation_steps=10_000, eval_on_start=where == "evaluation"))
    process = start("train", config)
    wait_for_banner(process)
    time.sleep(0.5)
    sent = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    assert time.monotonic() - sent < 3
    assert (output / "checkpoint-0").exists() and not (output / "metrics.jsonl").read_text()
    # Nothing of the abandoned step is in the checkpoint.
    ours, theirs = weights(output / "checkpoint-0"), weights(model)
    for key, tensor in ours.items():
        assert torch.equal(tensor, theirs[key]), key


def test_kill_9_inside_a_save_never_loses_the_newest_complete_checkpoint(model, long_data, tmp_path):
    straight = run(tmp_path, "straight", model, long_data, bf16=False)
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    output = tmp_path / "killed"
    config = write_config(tmp_path / "killed.yaml", **keys(model, long_data, output, bf16=False, save_total_limit=1))
    for _ in range(5):
        process = start("train", config, "--resume-from-checkpoint", env={"PROTRAIN_FILE_FAULT": "sleep=0.05"})
        time.sleep(draw.uniform(1.0, 4.0))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    protrain("train", config, "--resume-from-checkpoint")
    ours, theirs = weights(output), weights(straight)
    for key in theirs:
        assert torch.equal(ours[key], theirs[key]), key
    assert [row["step"] for row in rows(output)] == list(range(1, STEPS + 1))


def test_resume_refuses_other_data_and_another_order(model, long_data, tmp_path):
    output = run(tmp_path, "first", model, long_data, bf16=False)
    config = tmp_path / "first.yaml"
    result = protrain("train", config, "--resume-from-checkpoint", "--seed", "7", check=False)
    assert result.returncode == 2 and "seed: 42" in result.stderr, result.stderr
    result = protrain("train", config, check=False)
    assert result.returncode == 2 and "earlier run" in result.stderr, result.stderr
    other = write_tokens(tmp_path / "other.ptk", random_samples([9] * 400, seed=5))
    result = protrain("train", config, "--resume-from-checkpoint", "--train_file", other, check=False)
    assert result.returncode == 4 and "other training data" in result.stderr, result.stderr
    assert (output / "checkpoint-12").exists()


def test_a_stopped_evaluation_is_made_up(model, long_data, tmp_path):
    validation = write_tokens(tmp_path / "validation.ptk", random_samples([24] * 800))
    more = dict(validation_file=str(validation), per_device_eval_batch_size=1, packing=False, bf16=False, eval_steps=2,
                save_steps=0, max_steps=3)
    straight = run(tmp_path, "straight", model, long_data, **more)
    output = tmp_path / "stopped"
    config = write_config(tmp_path / "stopped.yaml", **keys(model, long_data, output, **more))
    process = start("train", config)
    wait_for_banner(process)
    # The row of step 2 is written just before its evaluation, which takes seconds.
    deadline = time.monotonic() + 60
    while not any(row["step"] == 2 for row in (rows(output) if (output / "metrics.jsonl").exists() else [])):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 143
    assert rows(output, "evaluate") == []  # it was stopped inside
    protrain("train", config, "--resume-from-checkpoint", "true")
    assert_same_end(output, straight)
    assert [row["step"] for row in rows(output, "evaluate")] == [2, 3]


def test_one_run_at_a_time_writes_to_a_folder(model, long_data, tmp_path):
    output = tmp_path / "busy"
    config = write_config(tmp_path / "busy.yaml", **keys(model, long_data, output, bf16=False, max_steps=100000, save_steps=0))
    process = start("train", config)
    wait_for_banner(process)
    second = protrain("train", config, "--overwrite_output_dir", "true", check=False)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 143
    assert second.returncode == 2 and str(output) in second.stderr and "another run" in second.stderr


def test_a_refused_run_leaves_the_old_checkpoints_alone(model, long_data, tmp_path):
    output = run(tmp_path, "old", model, long_data, bf16=False)
    before = sorted(path.name for path in output.glob("checkpoint-*"))
    assert before
    config = tmp_path / "old.yaml"
    for fault in (["--train_file", tmp_path / "absent.jsonl"], ["--model_name_or_path", tmp_path / "absent"],
                  ["--device_memory_limit", "10KiB"], ["--model_name_or_path", output / before[0]]):
        assert protrain("train", config, "--overwrite_output_dir", "true", *fault, check=False).returncode != 0
        assert sorted(path.name for path in output.glob("checkpoint-*")) == before, fault
