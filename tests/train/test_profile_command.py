"""`protrain profile`: measures once, keeps it, shows it, and writes what `protrain plan` reads."""

import json

import pytest
from train_support import protrain, write_config


@pytest.fixture
def config(model, long_data, tmp_path):
    return write_config(tmp_path / "c.yaml", model_name_or_path=str(model), train_file=str(long_data),
                        validation_file=str(long_data), output_dir=str(tmp_path / "out"), cutoff_len=32,
                        per_device_train_batch_size=2, max_steps=3, device="cpu", bf16=False)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def profile(config, cache, *words, check=True):
    return protrain("profile", config, *words, env={"PROTRAIN_CACHE": str(cache)}, check=check)


def test_tables_show_calls_links_updates_and_slowdowns(config, cache, tmp_path):
    result = profile(config, cache)
    lines = result.stdout.splitlines()
    for text in ("embedding", "layer 0 (2 alike)", "head", "forward, keep, light", "backward", "evaluate"):
        assert any(text in line for line in lines), text
    for text in ("host to device", "device to host", "update on the host", "update on the device", "norm"):
        (line,) = [line for line in lines if line.startswith(text)]
        assert float(line[28:].split()[0]) > 0, line
    assert "timing" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_profile_is_measured_once_and_anew_when_asked(config, cache):
    first = profile(config, cache)
    (file,) = (cache / "profiles").iterdir()
    assert file.stem == json.loads(file.read_text())["key"]
    again = profile(config, cache)
    assert again.stdout == first.stdout and "timing" not in again.stderr and str(file) in again.stderr
    before = file.read_text()
    renewed = profile(config, cache, "--refresh")
    assert "timing" in renewed.stderr and file.read_text() != before
    assert len(list((cache / "profiles").iterdir())) == 1


@pytest.mark.parametrize("words", [("--per_device_train_batch_size", "4"), ("--gradient_accumulation_steps", "2"),
                                   ("--deterministic", "true"), ("--bf16", "true"), ("--compute_threads", "1")])
def test_what_changes_times_has_a_profile_of_its_own(config, cache, words):
    profile(config, cache)
    assert "timing" in profile(config, cache, *words).stderr
    assert len(list((cache / "profiles").iterdir())) == 2


def test_what_does_not_change_times_shares_one(config, cache):
    profile(config, cache)
    words = ("--learning_rate", "1e-3", "--seed", "7", "--max_steps", "9", "--save_steps", "1")
    assert "timing" not in profile(config, cache, *words).stderr


def test_a_broken_file_is_named_and_replaced(config, cache):
    first = profile(config, cache)
    (file,) = (cache / "profiles").iterdir()
    whole = json.loads(file.read_text())
    file.write_text(file.read_text()[:100])
    result = profile(config, cache)
    assert f"warning: {file}" in result.stderr and "timing" in result.stderr
    assert json.loads(file.read_text()).keys() == whole.keys() and first.stdout


def test_a_cache_that_cannot_be_written_is_a_warning(config, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    result = profile(config, blocked)
    assert result.returncode == 0 and "warning" in result.stderr and "not kept" in result.stderr


def test_output_is_what_plan_reads(config, cache, tmp_path):
    file = tmp_path / "profile.json"
    profile(config, cache, "--output", file)
    nowhere = protrain("profile", config, "--output", file.parent / "absent" / "p.json", check=False)
    assert nowhere.returncode == 2 and "there is no folder" in nowhere.stderr, nowhere.stderr
    folder = protrain("profile", config, "--output", file.parent, check=False)
    assert folder.returncode == 2 and "is a folder" in folder.stderr, folder.stderr
    stored = json.loads(file.read_text())
    assert stored["key"] and stored["machine"]
    result = protrain("plan", config, "--profile", file, *THERE, "--json")
    assert json.loads(result.stdout)


THERE = ("--device-memory", "1GiB", "--host-memory", "4GiB")


def test_plan_computes_as_the_profile_did_and_refuses_what_contradicts(config, cache, tmp_path):
    file = tmp_path / "profile.json"
    profile(config, cache, "--output", file)
    config.write_text(config.read_text().replace("bf16: false", "bf16: auto"))
    for dtype, other in (("float32", "true"), ("bfloat16", "false")):
        stored = json.loads(file.read_text())
        stored["compute_dtype"] = dtype
        file.write_text(json.dumps(stored))
        answer = json.loads(protrain("plan", config, "--profile", file, *THERE, "--json").stdout)
        assert answer["batch"]["compute_dtype"] == dtype, answer["batch"]
        result = protrain("plan", config, "--profile", file, *THERE, "--bf16", other, check=False)
        assert result.returncode == 2 and f"is of a run in {dtype}, and bf16 is {other}" in result.stderr, result.stderr
    stored["compute_dtype"] = "float16"
    file.write_text(json.dumps(stored))
    result = protrain("plan", config, "--profile", file, *THERE, check=False)
    assert result.returncode == 2 and 'compute_dtype: "float16", must be float32 or bfloat16' in result.stderr, result.stderr


def test_plan_leaves_what_lies_outside_the_arena_as_the_profile_says(config, cache, tmp_path):
    file = tmp_path / "profile.json"
    profile(config, cache, "--output", file)
    config.write_text(config.read_text().replace("device: cpu", "device: auto"))
    stored = json.loads(file.read_text())
    room = []
    for outside in (0, 100 << 20):
        stored.update(machine="GPU: some", outside_bytes=outside)
        file.write_text(json.dumps(stored))
        memory = json.loads(protrain("plan", config, "--profile", file, *THERE, "--json").stdout)["memory"]
        device = memory["device"]
        tables = -(-memory["pinned"]["planned_bytes"] // 512) + (8 << 20)  # of pinned memory, and the driver's pieces
        assert device["outside_bytes"] == outside + tables
        room.append(device["limit_bytes"] - device["outside_bytes"])
    assert room[0] - room[1] == 100 << 20


def test_plan_takes_the_packed_rows_of_the_profile_where_the_data_is_elsewhere(config, cache, tmp_path):
    file = tmp_path / "profile.json"
    profile(config, cache, "--packing", "--output", file)
    lines = [line for line in config.read_text().splitlines() if not line.startswith(("train_file", "validation_file"))]
    config.write_text("\n".join([*lines, "train_file: absent.jsonl", "validation_file: absent.jsonl"]) + "\n")
    answer = json.loads(protrain("plan", config, "--packing", "--profile", file, *THERE, "--json").stdout)
    assert answer["batch"]["train_shapes"][0]["packed"] and any("presumed" in note for note in answer["notes"])
    result = protrain("plan", config, "--packing", "--profile", file, *THERE, "--cutoff_len", "16", check=False)
    assert result.returncode == 2 and "other shapes" in result.stderr, result.stderr


def test_plan_with_an_open_micro_batch_asks_about_those_that_the_profile_knows(config, cache, tmp_path):
    file = tmp_path / "profile.json"
    open_ = ("--per_device_train_batch_size", "auto", "--train_batch_size", "8")
    profile(config, cache, *open_, "--output", file)
    answer = json.loads(protrain("plan", config, *open_, "--profile", file, *THERE, "--json").stdout)
    assert answer["batch"]["train_shapes"][0]["rows"] == 1
    assert any("knows no micro-batches of 2 rows" in note for note in answer["notes"]), answer["notes"]


@pytest.mark.parametrize("words, said", [((), "the configuration comes first"), (("c.yaml", "--output"), "--output"),
                                         (("c.yaml", "--output", "--refresh"), "--output"),
                                         (("c.yaml", "--output", "a", "--output=b"), "as 'a' and as 'b'")])
def test_wrong_words_are_one_line_and_code_2(words, said):
    result = protrain("profile", *words, check=False)
    assert result.returncode == 2 and said in result.stderr and len(result.stderr.splitlines()) == 1


def test_unknown_keys_are_refused(config, cache):
    result = profile(config, cache, "--learning_rat", "1", check=False)
    assert result.returncode == 2 and "learning_rate" in result.stderr


def test_an_open_micro_batch_is_profiled_with_one_row(config, cache):
    result = profile(config, cache, "--per_device_train_batch_size", "auto", "--train_batch_size", "8")
    assert "one row" in result.stderr
    assert any("backward" in line and " 1 x " in line for line in result.stdout.splitlines())
