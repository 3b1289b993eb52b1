"""Commands beside train, and what train writes beside the model."""

import json
import shutil
import struct

import pytest
import torch
from train_support import BINARY, protrain, rows, weights, write_config


@pytest.fixture
def keys(model, long_data, tmp_path):
    return dict(model_name_or_path=str(model), train_file=str(long_data), output_dir=str(tmp_path / "out"), cutoff_len=32,
                per_device_train_batch_size=2, max_steps=3, save_steps=0, logging_steps=1, device="cpu", bf16=False)


def test_init_draws_the_same_weights_for_the_same_seed_and_export_casts(model, tmp_path):
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        protrain("init", model, tmp_path / name, "--seed", seed)
    a, b, c = (weights(tmp_path / name) for name in "abc")
    matrix = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(a[matrix], b[matrix]) and not torch.equal(a[matrix], c[matrix])
    protrain("export", tmp_path / "a", tmp_path / "half", "--dtype", "bfloat16")
    half = weights(tmp_path / "half")
    assert all(torch.equal(half[key], a[key].to(torch.bfloat16)) for key in a)
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    protrain("export", tmp_path / "half", tmp_path / "again")
    assert weights(tmp_path / "again")[matrix].dtype == torch.bfloat16


def test_trace_tensorboard_plan_and_resolved_config_are_written(keys, tmp_path):
    config = write_config(tmp_path / "c.yaml", **keys, trace_steps=[2], report_to="tensorboard")
    protrain("train", config, "--learning-rate", "3e-4")
    output = tmp_path / "out"
    events = json.loads((output / "trace-step-2.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    assert any("backward" in event.get("name", "") for event in events)
    (board,) = (output / "tensorboard").iterdir()
    data = board.read_bytes()
    count = at = 0
    while at < len(data):
        at += 16 + struct.unpack_from("<Q", data, at)[0]
        count += 1
    assert at == len(data) and count == 2 + len(rows(output))
    assert json.loads((output / "plan.json").read_text())["predicted_device_bytes"] > 0
    # The resolved config is a config: the same run again.
    resolved = output / "train_config.yaml"
    assert "learning_rate: 3e-04" in resolved.read_text() or "learning_rate: 0.0003" in resolved.read_text()
    copy = tmp_path / "resolved.yaml"
    shutil.copy(resolved, copy)
    first = [row["loss"] for row in rows(output)]
    protrain("train", copy, "--output_dir", tmp_path / "again")
    assert [row["loss"] for row in rows(tmp_path / "again")] == first


def test_metrics_have_the_promised_fields(keys, tmp_path):
    protrain("train", write_config(tmp_path / "c.yaml", **keys))
    for row in rows(tmp_path / "out"):
        for field in ("step", "epoch", "loss", "grad_norm", "learning_rate", "tokens", "tokens_per_second", "step_seconds",
                      "device_peak_bytes", "host_peak_bytes", "model_tflops"):
            assert row[field] >= 0, field


def test_threads_do_not_depend_on_omp_num_threads(keys, tmp_path):
    result = protrain("train", write_config(tmp_path / "c.yaml", **keys))
    other = protrain("train", write_config(tmp_path / "c2.yaml", **dict(keys, output_dir=str(tmp_path / "out2"))),
                     env={"OMP_NUM_THREADS": "1"})
    line = [text for text in result.stderr.splitlines() if "compute threads" in text]
    assert line == [text for text in other.stderr.splitlines() if "compute threads" in text] and line
    first, second = weights(tmp_path / "out"), weights(tmp_path / "out2")
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_raw_data_is_prepared_once(keys, tmp_path):
    raw = tmp_path / "raw.jsonl"
    raw.write_text("".join(json.dumps({"input_ids": [1 + i, 2, 3, 4]}) + "\n" for i in range(9)))
    config = write_config(tmp_path / "c.yaml", **dict(keys, train_file=str(raw)),
                          dataset_prepared_path=str(tmp_path / "cache"), overwrite_output_dir=True)
    assert "preparing" in protrain("train", config).stderr
    assert "prepared before" in protrain("train", config, env={"PROTRAIN_PYTHON": "/nonexistent"}).stderr
    raw.write_text(raw.read_text() + json.dumps({"input_ids": [5, 6, 7]}) + "\n")
    assert "preparing" in protrain("train", config).stderr
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_wrong_words_are_one_line_and_code_2():
    for words in (["frobnicate"], [], ["train"], ["export", "only-one"], ["init", "a", "b", "--dtype", "int8"],
                  ["init", "a", "b", "--seed", "-1"], ["init", "a", "b", "--seed", "18446744073709551615"],
                  ["init", "a", "b", "--seed", "9223372036854775807"], ["init", "a", "b", "--seed", "1.5"]):
        result = protrain(*words, check=False)
        assert result.returncode == 2, (words, result.stderr)
        assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("protrain: error: "), result.stderr
    assert protrain("--help").stdout and BINARY.exists()
    assert "--learning_rate" in protrain("train", "--help").stdout
    assert "protrain train CONFIG.yaml [--key value ...]" in protrain("train", "--help").stdout
    assert "--input" in protrain("prepare", "--help").stdout
