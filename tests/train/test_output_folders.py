"""What lies in an output folder already is gone on from, kept or refused, never written over without a word."""

import shutil

import pytest
import torch
from train_support import protrain, rows, weights, write_config


@pytest.fixture
def run(model, long_data, tmp_path):
    """run("out", *words, code=0, **keys): a short run on the CPU; its stderr."""
    def go(name, *words, code=0, **more):
        keys = dict(model_name_or_path=str(model), train_file=str(long_data), output_dir=str(tmp_path / name), cutoff_len=32,
                    per_device_train_batch_size=2, learning_rate=1e-3, max_steps=6, logging_steps=1, save_steps=2,
                    lr_scheduler_type="constant", device="cpu", bf16=False)
        keys.update(more)
        result = protrain("train", write_config(tmp_path / f"{name}.yaml", **keys), *words, check=False)
        assert result.returncode == code, (result.returncode, result.stderr)
        return result.stderr

    return go


@pytest.fixture
def six(run, tmp_path):
    """A finished run: checkpoints 2, 4, 6."""
    run("out")
    return tmp_path / "out"


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("checkpoint"))


def error(text):
    (line,) = [line for line in text.splitlines() if line.startswith("protrain: error: ")]
    return line


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_going_back_sets_the_newer_checkpoints_aside(run, six, tmp_path):
    old = weights(six / "checkpoint-6")
    # A resume that is refused changes nothing.
    run("out", "--resume_from_checkpoint", six / "checkpoint-2", "--seed", 9, code=2)
    assert names(six) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    text = run("out", "--resume_from_checkpoint", six / "checkpoint-2", "--max_steps", 3, "--learning_rate", "1e-2",
               "--save_total_limit", 1)
    assert sum("set-aside" in line for line in text.splitlines()) == 1, text
    # The limit counts the branch that goes on; what was left is there still, whole.
    assert names(six) == ["checkpoint-3", "checkpoint-4.set-aside-1", "checkpoint-6.set-aside-1"]
    kept = weights(six / "checkpoint-6.set-aside-1")
    assert all(torch.equal(kept[key], old[key]) for key in old)
    text = run("out", "--resume_from_checkpoint", "true", "--learning_rate", "1e-2")
    assert "checkpoint-3 at step 3" in text
    # And it can be gone back to, even from another spelling of the path.
    text = run("out", "--resume_from_checkpoint", f"{tmp_path}/./out/checkpoint-4.set-aside-1/", "--save_steps", 100)
    assert "at step 4" in text
    ours = weights(six / "checkpoint-6")
    assert all(torch.equal(ours[key], old[key]) for key in old), "the first branch once more"


def test_damaged_checkpoints_are_named(run, six):
    (six / "checkpoint-6" / "optimizer_v.safetensors").unlink()
    flip(six / "checkpoint-4" / "optimizer_m.safetensors", -3)
    text = run("out", "--resume_from_checkpoint", "true", "--save_steps", 100)
    warnings = [line for line in text.splitlines() if "warning" in line]
    assert len(warnings) == 2 and "checkpoint-6/optimizer_v.safetensors is missing" in warnings[0], text
    assert "checkpoint-4/optimizer_m.safetensors is damaged" in warnings[1] and "checkpoint-2" in warnings[1], text
    assert names(six) == ["checkpoint-2", "checkpoint-4.set-aside-1", "checkpoint-6", "checkpoint-6.set-aside-1"]
    # Named by its path there is nothing to fall back to.
    flip(six / "checkpoint-6" / "config.json", 0)
    text = run("out", "--resume_from_checkpoint", six / "checkpoint-6", code=5)
    assert "checkpoint-6/config.json is damaged" in error(text)
    # Only damaged ones: that is no reason to start anew.
    for name in ("checkpoint-2", "checkpoint-6"):
        (six / name / "COMMITTED").unlink()
    before = names(six)
    text = run("out", "--resume_from_checkpoint", "true", code=5)
    assert "checkpoint-6/COMMITTED is missing" in error(text)
    text = run("out", "--resume_from_checkpoint", six / "checkpoint-2", code=5)
    assert "checkpoint-2/COMMITTED is missing" in error(text)
    assert names(six) == before


def test_true_without_any_checkpoint_starts_with_a_word(run, tmp_path):
    assert "holds no checkpoint; starting from the beginning" in run("new", "--resume_from_checkpoint", "true")
    assert len(rows(tmp_path / "new")) == 6
    assert "checkpoint-99 is not a folder" in error(run("new", "--resume_from_checkpoint", tmp_path / "checkpoint-99", code=2))


def test_max_steps_at_or_below_the_resumed_step(run, six):
    text = error(run("out", "--resume_from_checkpoint", six / "checkpoint-4", "--max_steps", 3, code=2))
    assert "max_steps: 3" in text and "step 4" in text
    assert names(six) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"], "refused before anything is set aside"
    text = run("out", "--resume_from_checkpoint", "true")
    assert "nothing is left to train" in text
    assert [row["step"] for row in rows(six)] == [1, 2, 3, 4, 5, 6]


def test_train_does_not_write_over_a_model(run, model, tmp_path):
    foreign = tmp_path / "foreign"
    for name in ("model.safetensors", "config.json", "tokenizer.json", "pytorch_model.bin", "adapter_model.safetensors"):
        shutil.rmtree(foreign, ignore_errors=True)
        foreign.mkdir()
        (foreign / name).write_bytes(b"theirs")
        (foreign / "notes.txt").write_text("no model")
        text = error(run("foreign", code=2))
        assert name in text and "overwrite_output_dir" in text, text
        assert error(run("foreign", "--resume_from_checkpoint", "true", code=2)) == text
        assert (foreign / name).read_bytes() == b"theirs"
        assert not (foreign / "train_config.yaml").exists()
    (foreign / "tokenizer.json").write_bytes(b"theirs")
    run("foreign", "--overwrite_output_dir", "true", "--save_steps", 0)
    assert (foreign / "notes.txt").exists() and not (foreign / "tokenizer.json").exists(), "no tokenizer of another model"
    # The run's own model, without checkpoints, is a model too.
    assert "model.safetensors" in error(run("foreign", code=2))
    # A folder without a model is no harm.
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "log.txt").write_text("")
    run("plain", "--max_steps", 1)


def test_init_and_export_do_not_write_over_a_model(run, six, model, tmp_path):
    to = tmp_path / "to"
    protrain("export", six / "checkpoint-4", to)
    first = (to / "model.safetensors").read_bytes()
    (to / "tokenizer.json").write_text("theirs")
    for command in (["export", six / "checkpoint-2", to], ["init", model, to]):
        result = protrain(*command, check=False)
        assert result.returncode == 2 and "model.safetensors" in error(result.stderr), result.stderr
        assert "--overwrite" in error(result.stderr) and (to / "model.safetensors").read_bytes() == first
        # Never over a run or a checkpoint.
        for run_folder in (six, six / "checkpoint-6"):
            result = protrain(*command[:-1], run_folder, "--overwrite", check=False)
            assert result.returncode == 2 and "training run" in error(result.stderr), result.stderr
    protrain("export", six / "checkpoint-2", to, "--overwrite")
    assert (to / "model.safetensors").read_bytes() != first
    protrain("init", model, to, "--overwrite", "--seed", 5)
    config = tmp_path / "config"
    config.mkdir()
    shutil.copy(model / "config.json", config)
    protrain("init", config, config)  # weights beside the config.json that they are made from
    assert protrain("init", config, config, check=False).returncode == 2
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        result = protrain("init", model, target, check=False)
        assert result.returncode == 2 and str(target) in error(result.stderr), result.stderr
        assert str(target) in error(run("x", "--output_dir", target, code=2))


def test_every_kind_of_checkpoint_exports_and_the_model_alone_does_not_resume(run, six, tmp_path):
    run("alone", "--save_only_model", "true", "--max_steps", 2)
    run("half", "--bf16", "true", "--export_dtype", "float16", "--max_steps", 2)
    run("bf16", "--bf16", "true", "--export_dtype", "bfloat16", "--max_steps", 2)
    assert not list((tmp_path / "alone" / "checkpoint-2").glob("optimizer*"))
    for name in ("out", "alone", "half", "bf16"):
        protrain("export", tmp_path / name / "checkpoint-2", tmp_path / f"{name}-model")
        ours, theirs = weights(tmp_path / f"{name}-model"), weights(tmp_path / name / "checkpoint-2")
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs), name
        from transformers import AutoModelForCausalLM

        AutoModelForCausalLM.from_pretrained(tmp_path / f"{name}-model")
    same = weights(tmp_path / "out-model")
    assert all(torch.equal(same[key], tensor) for key, tensor in weights(tmp_path / "alone-model").items())
    text = error(run("alone", "--resume_from_checkpoint", "true", code=5))
    assert "checkpoint-2" in text and "save_only_model" in text
    flip(tmp_path / "alone" / "checkpoint-2" / "model.safetensors", -1)
    result = protrain("export", tmp_path / "alone" / "checkpoint-2", tmp_path / "damaged", check=False)
    assert result.returncode == 5 and "model.safetensors is damaged" in error(result.stderr), result.stderr


def test_paths_that_are_not_there_are_code_2_and_folders_that_lack_files_code_5(run, model, six, tmp_path):
    absent, empty = tmp_path / "absent", tmp_path / "empty"
    empty.mkdir()
    for key in ("model_name_or_path", "tokenizer_name", "resume_from_checkpoint"):
        assert str(absent) in error(run("a", f"--{key}", absent, code=2)), key
    for words in (["--model_name_or_path", empty], ["--resume_from_checkpoint", empty],
                  ["--model_name_or_path", "null", "--config_name", empty]):
        text = error(run("b", *words, code=5))
        assert str(empty) in text, text
    assert str(absent) in error(run("c", "--model_name_or_path", "null", "--config_name", absent, code=2))
    for command in (["export", absent, tmp_path / "to"], ["init", absent, tmp_path / "to"]):
        assert protrain(*command, check=False).returncode == 2
    for command in (["export", empty, tmp_path / "to"], ["init", empty, tmp_path / "to"]):
        assert protrain(*command, check=False).returncode == 5
    assert protrain("train", absent, check=False).returncode == 2
    assert not (tmp_path / "to").exists()


def test_traces_of_an_earlier_run_do_not_outlive_it(run, tmp_path):
    def traces():
        return sorted(path.name for path in (tmp_path / "out").glob("trace-step-*"))

    from protrain import report

    run("out", trace_steps=[2, 3, 6])
    assert traces() == ["trace-step-2.json", "trace-step-3.json", "trace-step-6.json"]
    # What goes on from step 4 has made steps 2 and 3, and not yet step 6.
    run("out", "--resume_from_checkpoint", tmp_path / "out" / "checkpoint-4", max_steps=5)
    assert traces() == ["trace-step-2.json", "trace-step-3.json"]
    (tmp_path / "out" / "trace-step-mine.json").write_text("{}")
    run("out", "--overwrite_output_dir", max_steps=1)
    assert traces() == ["trace-step-mine.json"] and report.collect(tmp_path / "out")["measured"] == []
