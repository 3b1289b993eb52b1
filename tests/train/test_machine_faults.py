"""What the machine, the terminal and the environment do to a run: signals, a limit on memory, a wrong Python."""

import json
import os
import signal
import subprocess
import time

import pytest
from train_support import BINARY, protrain, random_samples, start, write_config, write_tokens


@pytest.fixture
def keys(model, long_data, tmp_path):
    return dict(model_name_or_path=str(model), train_file=str(long_data), output_dir=str(tmp_path / "out"), cutoff_len=32,
                per_device_train_batch_size=2, max_steps=3, save_steps=0, logging_steps=1, device="cpu", bf16=False,
                dataset_prepared_path=str(tmp_path / "cache"))


def errors_of(text):
    return [line for line in text.splitlines() if line.startswith("protrain: error: ")]


def read_until(process, word):
    for line in process.stderr:
        if word in line:
            return line
    raise AssertionError(f"no {word!r}")


@pytest.fixture
def long_step(keys, tmp_path):
    """A run whose first step takes very long."""
    data = write_tokens(tmp_path / "t.ptk", random_samples([30] * 40_000))
    return write_config(tmp_path / "long.yaml", **dict(keys, train_file=str(data), gradient_accumulation_steps=10_000))


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_is_answered_at_once_and_its_echo_changes_nothing(number, code, long_step, tmp_path):
    process = start("train", long_step)
    read_until(process, "pinned host memory")
    sent = time.monotonic()
    process.send_signal(number)
    line = read_until(process, "protrain: SIG")
    assert time.monotonic() - sent < 1 and "a checkpoint will be saved" in line
    process.send_signal(number)
    rest = process.stderr.read()
    assert process.wait(timeout=60) == code, rest
    assert (tmp_path / "out" / "checkpoint-0" / "COMMITTED").exists()
    protrain("train", long_step, "--resume_from_checkpoint", "true", "--max_steps", "0")


def test_a_second_signal_ends_a_run_that_is_slow_to_stop(long_step, tmp_path):
    process = start("train", long_step, env={"PROTRAIN_FILE_FAULT": "sleep=0.4"})
    read_until(process, "pinned host memory")
    process.send_signal(signal.SIGTERM)
    read_until(process, "SIGTERM: stopping")
    time.sleep(1.2)
    process.send_signal(signal.SIGTERM)
    rest = process.stderr.read()
    assert process.wait(timeout=10) == -signal.SIGTERM and "ending at once" in rest, rest


def test_a_closed_log_does_not_cost_the_checkpoint(long_step, tmp_path):
    process = start("train", long_step)
    read_until(process, "pinned host memory")
    process.stderr.close()  # as Ctrl-C ends a `tee` too
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert (tmp_path / "out" / "checkpoint-0" / "COMMITTED").exists()


def test_preparing_ends_with_the_run_and_leaves_nothing(keys, tmp_path):
    raw = tmp_path / "raw.jsonl"
    raw.write_text('{"input_ids": [1, 2, 3, 4]}\n' * 400_000)
    config = write_config(tmp_path / "c.yaml", **dict(keys, train_file=str(raw)))
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        process = start("train", config)
        read_until(process, "preparing")
        deadline = time.monotonic() + 60
        while not any((tmp_path / "cache").glob(".*.tmp")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        _, text = process.communicate(timeout=30)
        assert process.returncode == code and "there is nothing to save" in text, text
        assert not list((tmp_path / "cache").iterdir()), number
        assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_a_wrong_python_is_code_2_naming_the_variable(keys, tmp_path):
    raw = tmp_path / "raw.jsonl"
    raw.write_text('{"input_ids": [1, 2, 3, 4]}\n' * 9)
    config = write_config(tmp_path / "c.yaml", **dict(keys, train_file=str(raw)))
    bare = tmp_path / "bare"
    bare.write_text('#!/bin/sh\nexec /usr/bin/env python3 -I -S "$@"\n')  # without any installed module
    bare.chmod(0o755)
    data = tmp_path / "data"
    data.write_text("no program")
    data.chmod(0o755)
    cases = {"/nonexistent/python": "cannot be run", str(tmp_path): "cannot be run", "/bin/sh": "is not a Python",
             "/bin/true": "is not a Python", "/bin/false": "is not a Python", str(data): "", str(bare): "tokenizers"}
    for value, words in cases.items():
        for command in (["train", config], ["prepare", "--input", raw, "--output", tmp_path / "x.ptk"]):
            result = protrain(*command, env={"PROTRAIN_PYTHON": value}, check=False)
            (line,) = errors_of(result.stderr)
            assert result.returncode == 2, (value, result.stderr)
            for word in ("PROTRAIN_PYTHON", value, words, "must name a Python"):
                assert word in line, (value, line)


def test_messages_name_keys_not_flags(keys, tmp_path):
    raw = tmp_path / "raw.jsonl"
    raw.write_text('{"text": "hello"}\n')
    for text in ('{"text": "hello"}\n', '{"text": \n'):
        raw.write_text(text)
        result = protrain("train", write_config(tmp_path / "c.yaml", **dict(keys, train_file=str(raw))), check=False)
        (line,) = errors_of(result.stderr)
        assert "--" not in line, line
        assert ("tokenizer_name" in line) == ("hello" in text), line


def limited(kib, *words):
    return subprocess.run(["bash", "-c", f'ulimit -v {kib}; exec "$@"', "sh", str(BINARY), *map(str, words)],
                          capture_output=True, text=True, timeout=120, env=os.environ)


def test_any_limit_on_the_address_space_is_met_or_ends_with_code_3(keys, tmp_path):
    config = write_config(tmp_path / "c.yaml", **dict(keys, per_device_train_batch_size=64, max_steps=2, cutoff_len=256,
                                                      packing=True))
    # What the program needs before it does anything: libraries.
    def starts(kib):
        return limited(kib, "version").returncode == 0

    low, high = 100_000, 64_000_000
    while high - low > 10_000:
        middle = (low + high) // 2
        low, high = (low, middle) if starts(middle) else (middle, high)
    codes = {}
    for more_mib in (0, 20, 60, 100, 150, 200, 300, 500, 800, 1200, 2000):
        result = limited(high + more_mib * 1024, "train", config, "--overwrite_output_dir", "true")
        codes[more_mib] = result.returncode
        assert result.returncode in (0, 3), (more_mib, result.returncode, result.stderr)
        if result.returncode == 3:
            (line,) = errors_of(result.stderr)
            assert "memory" in line or "does not fit" in line, line
    print(json.dumps(codes))
    assert codes[0] == 3 and codes[2000] == 0, codes
