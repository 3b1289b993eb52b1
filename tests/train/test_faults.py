"""Faults of input are found before the first step, with an exit code and a message that names the place."""

import json
import shutil

import pytest
import torch
from train_support import VOCABULARY, protrain, random_samples, rows, write_config, write_tokens


@pytest.fixture
def base(model, long_data, tmp_path):
    return dict(model_name_or_path=str(model), train_file=str(long_data), output_dir=str(tmp_path / "out"), cutoff_len=32,
                per_device_train_batch_size=2, max_steps=2, save_steps=0, device="cpu", bf16=False, logging_steps=1,
                dataset_prepared_path=str(tmp_path / "cache"))


def refused(tmp_path, keys, code, *words, extra=""):
    config = write_config(tmp_path / "c.yaml", **keys)
    config.write_text(config.read_text() + extra)
    result = protrain("train", config, check=False)
    assert result.returncode == code, (result.returncode, result.stderr)
    errors = [line for line in result.stderr.splitlines() if line.startswith("protrain: error: ")]
    assert len(errors) == 1, result.stderr
    for word in words:
        assert str(word) in errors[0], errors[0]
    metrics = tmp_path / "out" / "metrics.jsonl"
    assert not metrics.exists() or not metrics.read_text()


def test_unknown_and_mistyped_keys(base, tmp_path):
    refused(tmp_path, base, 2, "c.yaml:", "learning_rat", "did you mean 'learning_rate'", extra="learning_rat: 1\n")
    refused(tmp_path, base, 2, "c.yaml:", "weight_decay", "'heavy'", "number", extra="weight_decay: heavy\n")
    refused(tmp_path, base, 2, "num_train_epochs", "max_steps", "drop one", extra="num_train_epochs: 2\n")


JSON_FAULTS = {
    "bad": ('{"input_ids": [1, 2, 3]}\n' * 4 + '{"input_ids": [1, 2\n' + '{"input_ids": [1, 2, 3]}\n', (":5:",)),
    "torn": ('{"input_ids": [1, 2, 3]}\n{"input_ids": [1, 2', (":2:",)),
    "empty": ("", ()),
    "id": ('{"input_ids": [1, 2, %d]}\n' % VOCABULARY, (str(VOCABULARY),)),
    "unsupervised": ('{"input_ids": [1, 2, 3], "labels": [-100, -100, -100]}\n', ()),
}


@pytest.mark.parametrize("fault", JSON_FAULTS)
def test_faulty_records(fault, base, tmp_path):
    text, words = JSON_FAULTS[fault]
    path = tmp_path / "data.jsonl"
    path.write_text(text)
    place = (path.name,) if fault in ("bad", "torn", "empty") else ()
    refused(tmp_path, dict(base, train_file=str(path)), 4, *place, *words)


def test_byte_order_mark_and_crlf_are_no_fault(base, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"input_ids": [1, 2, 3, 4]}\r\n' * 9 + b"\r\n")
    config = write_config(tmp_path / "c.yaml", **dict(base, train_file=str(path)))
    protrain("train", config)
    assert len(rows(tmp_path / "out")) == 2


def test_token_id_outside_the_vocabulary(base, tmp_path):
    samples = random_samples([9, 9])
    samples[1][4] = VOCABULARY + 3
    path = write_tokens(tmp_path / "x.ptk", samples, vocabulary=60000)
    refused(tmp_path, dict(base, train_file=str(path)), 4, path, "13", VOCABULARY + 3)


def test_no_sample_with_a_supervised_token(base, tmp_path):
    path = write_tokens(tmp_path / "x.ptk", random_samples([9, 9]), masks=[[0] * 9] * 2)
    refused(tmp_path, dict(base, train_file=str(path)), 4, path)


def test_faulty_model_files(base, model, tmp_path):
    def with_model(change):
        folder = tmp_path / "faulty"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(model, folder)
        change(folder)
        return dict(base, model_name_or_path=str(folder))

    def truncate(folder):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1])

    def poison(folder):
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.1.mlp.up_proj.weight"][3, 2] = float("nan")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    def reshape(folder):
        config = json.loads((folder / "config.json").read_text())
        config["intermediate_size"] += 1
        (folder / "config.json").write_text(json.dumps(config))

    def misindex(folder):
        (folder / "model.safetensors").rename(folder / "a.safetensors")
        index = {"metadata": {}, "weight_map": {"model.norm.weight": "b.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    refused(tmp_path, with_model(lambda f: (f / "model.safetensors").unlink()), 5, "model.safetensors")
    refused(tmp_path, with_model(truncate), 5, "model.safetensors")
    refused(tmp_path, with_model(poison), 5, "model.layers.1.mlp.up_proj.weight")
    refused(tmp_path, with_model(reshape), 5, "mlp")
    refused(tmp_path, with_model(misindex), 5, "b.safetensors")
    refused(tmp_path, dict(base, model_name_or_path=str(tmp_path / "absent")), 2, "absent")


TOO_LONG, LOOP = "File name too long", "Too many levels of symbolic links"


@pytest.fixture(params=[TOO_LONG, LOOP])
def unseen(request, tmp_path):
    """A path that the system cannot look at, and what it says."""
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path / ("loop" if request.param == LOOP else "a" * 5000), request.param


@pytest.mark.parametrize("key,code", [("model_name_or_path", 2), ("config_name", 2), ("tokenizer_name", 2), ("output_dir", 2),
                                      ("resume_from_checkpoint", 2), ("plan", 2), ("train_file", 4), ("validation_file", 4),
                                      ("dataset_prepared_path", 4)])
def test_paths_that_cannot_be_looked_at(key, code, unseen, base, tmp_path):
    path, why = unseen
    if key == "config_name":
        del base["model_name_or_path"]
    if key == "dataset_prepared_path":
        base["train_file"] = str(tmp_path / "x.jsonl")
        (tmp_path / "x.jsonl").write_text('{"input_ids": [1, 2, 3]}\n')
    refused(tmp_path, dict(base, **{key: str(path)}), code, path, why)


def test_paths_of_commands_that_cannot_be_looked_at(unseen, base, model, tmp_path):
    path, why = unseen
    config = write_config(tmp_path / "c.yaml", **base)
    for words in (["export", path, tmp_path / "to"], ["export", model, path], ["init", path, tmp_path / "to"],
                  ["init", model, path], ["profile", config, "--output", path], ["train", path], ["plan", path]):
        result = protrain(*words, check=False)
        assert result.returncode == 2, (words, result.stderr)
        (line,) = result.stderr.splitlines()
        assert str(path) in line and why in line


def test_files_of_a_model_that_cannot_be_looked_at(base, model, tmp_path):
    for name in ("config.json", "model.safetensors"):
        folder = tmp_path / name
        shutil.copytree(model, folder)
        (folder / name).unlink()
        (folder / name).symlink_to(name)
        refused(tmp_path, dict(base, model_name_or_path=str(folder)), 5, name)


def test_what_does_not_fit_is_refused_with_both_numbers(base, tmp_path):
    refused(tmp_path, dict(base, device_memory_limit="100KB"), 3, "does not fit", "100000 bytes", "need")


def test_non_finite_updates_are_skipped_visibly_and_end_the_run(base, tmp_path):
    # A learning rate that throws the weights out of range makes every later loss not finite.
    config = write_config(tmp_path / "c.yaml", **dict(base, max_steps=20, learning_rate=1e6, max_nonfinite_steps=3,
                                                      lr_scheduler_type="constant", adam_epsilon=1e-30,
                                                      weight_decay=1e6))
    result = protrain("train", config, check=False)
    assert result.returncode == 6, result.stderr
    assert "in a row" in result.stderr
    skipped = [row for row in rows(tmp_path / "out") if row["skipped"]]
    assert len(skipped) >= 3
    assert skipped[-1]["applied_updates"] == skipped[0]["applied_updates"]


def test_the_same_config_runs_from_config_json_alone(base, model, tmp_path):
    folder = tmp_path / "config-only"
    folder.mkdir()
    shutil.copy(model / "config.json", folder)
    keys = {key: value for key, value in base.items() if key != "model_name_or_path"}
    protrain("train", write_config(tmp_path / "c.yaml", **keys, config_name=str(folder)))
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)


def test_data_with_nothing_left_is_named_by_its_key(base, tmp_path):
    short = tmp_path / "short.jsonl"
    short.write_text('{"input_ids": [5]}\n')
    for key, what in (("train_file", "train on"), ("validation_file", "evaluate with")):
        refused(tmp_path, base | {key: str(short)}, 4, f"{key}: {short}: no sample is left to {what}; dropped 1")
    empty = write_tokens(tmp_path / "empty.ptk", [[5, 6, 7]], masks=[[0, 0, 0]])
    refused(tmp_path, dict(base, validation_file=str(empty)), 4, f"validation_file: {empty}: none of its 1 samples")


def test_a_plan_that_cannot_be_read_is_a_fault_of_the_configuration(base, tmp_path):
    refused(tmp_path, dict(base, plan="/tmp"), 2, "c.yaml:", "plan: cannot open /tmp: Is a directory", "plan.json")


def test_a_step_of_too_many_block_calls_is_refused_before_it_is_planned(base, tmp_path):
    refused(tmp_path, dict(base, gradient_accumulation_steps=1048576), 2, "gradient_accumulation_steps: 1048576",
            "at most 50000")
    keys = {key: value for key, value in base.items() if key != "per_device_train_batch_size"}
    refused(tmp_path, dict(keys, per_device_train_batch_size="auto", train_batch_size=1048576), 2,
            "gradient_accumulation_steps: 1048576", "train_batch_size")
