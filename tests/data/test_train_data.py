"""The data of `protrain train`, from raw files to the cache: faults are named in the run's own terms, nothing is left over."""

import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from chat_tokenizers import write_jsonl

BINARY = Path(__file__).resolve().parents[2] / "build" / "release" / "bin" / "protrain"
WAIT_SECONDS = 60
VOCABULARY = 350  # fewer than the tokenizer's entries


@pytest.fixture
def words(tmp_path, tokenizers):
    """A run of one step from random weights on data.jsonl."""
    model = tmp_path / "model"
    model.mkdir()
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, vocab_size=VOCABULARY)
    (model / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 64, **sizes}))
    keys = dict(config_name=model, tokenizer_name=tokenizers["chatml"], train_file=tmp_path / "data.jsonl", max_steps=1,
                output_dir=tmp_path / "out", dataset_prepared_path=tmp_path / "cache", device="cpu", bf16="false",
                save_steps=0, cutoff_len=64)  # fmt: skip
    config = tmp_path / "c.yaml"
    config.write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
    return [str(BINARY), "train", str(config)]


def train(words, **options):
    return subprocess.run(words, capture_output=True, text=True, timeout=300, **options)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []


def error_of(result) -> str:
    [line] = [line for line in result.stderr.splitlines() if line.startswith("protrain: error: ")]
    return line.removeprefix("protrain: error: ")


def test_records_are_named_by_line_and_switches_by_key(words, tmp_path):
    source = tmp_path / "data.jsonl"
    for records, why in (
        ([{"text": "!!"}, {"text": "slings and arrows of outrageous fortune"}], f"the model's vocabulary has {VOCABULARY}"),
        ([{"input_ids": [1, 2]}, {"input_ids": [1, VOCABULARY]}], f"input_ids[1] is {VOCABULARY}, but the vocabulary has"),
    ):
        write_jsonl(source, records)
        result = train(words)
        assert result.returncode == 4, result.stderr
        assert error_of(result).startswith(f"{source}:2: ") and why in error_of(result)
        assert "skip_bad: true" in error_of(result) and "--" not in error_of(result)
        assert names(tmp_path / "cache") == []


def test_a_full_disk_under_the_cache_names_the_file(words, tmp_path):
    write_jsonl(tmp_path / "data.jsonl", [{"text": "! " * 2000}])
    result = train(words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500)))
    assert result.returncode == 4, result.stderr
    error = error_of(result)
    assert error.startswith(str(tmp_path / "cache")) and error.endswith(".ptk: cannot be written: File too large")
    assert names(tmp_path / "cache") == []


def test_a_damaged_cached_file_is_made_anew_and_said(words, tmp_path):
    write_jsonl(tmp_path / "data.jsonl", [{"text": "! " * 50}] * 20)
    assert train(words).returncode == 0
    [cached] = (tmp_path / "cache").iterdir()
    whole = cached.read_bytes()
    cached.write_bytes(whole[:40] + b"\xff" + whole[41:])
    result = train([*words, "--overwrite_output_dir"])
    assert result.returncode == 0, result.stderr
    assert f"damaged and is made anew ({cached}" in result.stderr
    assert cached.read_bytes() == whole and names(tmp_path / "cache") == [cached.name]


def test_a_byte_that_changed_into_another_valid_id_is_seen(words, tmp_path):
    write_jsonl(tmp_path / "data.jsonl", [{"input_ids": [1, 2, 3, 4] * 300}] * 2000)  # 4.8 MB: hashes of hashes
    assert train(words).returncode == 0
    [cached] = (tmp_path / "cache").iterdir()
    whole = cached.read_bytes()
    at = 128 + 2 * 1_000_001  # of token 1,000,001, a 2
    assert whole[at] == 2
    cached.write_bytes(whole[:at] + b"\x05" + whole[at + 1 :])
    result = train([*words, "--overwrite_output_dir"])
    assert result.returncode == 0 and f"damaged and is made anew ({cached}" in result.stderr, result.stderr
    assert cached.read_bytes() == whole
    own = tmp_path / "own.ptk"
    own.write_bytes(whole[:at] + b"\x05" + whole[at + 1 :])
    result = train([*words, "--overwrite_output_dir", "--train_file", str(own)])
    assert result.returncode == 4 and error_of(result).startswith(f"{own}: the file is not what was written"), result.stderr


def test_killing_the_run_ends_its_preparation(words, tmp_path):
    write_jsonl(tmp_path / "data.jsonl", [{"text": "the quick brown fox jumps over the lazy dog " * 200}] * 20_000)
    run = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    cache = tmp_path / "cache"
    end = time.monotonic() + WAIT_SECONDS
    try:
        while not names(cache):
            assert run.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        [child] = [int(line) for line in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()]
    finally:
        run.kill()
        run.wait()
    while Path(f"/proc/{child}").exists():
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            pytest.fail("the preparation outlived the run")
        time.sleep(0.05)
    assert names(cache) == []
