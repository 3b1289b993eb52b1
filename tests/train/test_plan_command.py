"""`protrain plan`: what it says, what it needs, how it fails. Only config.json of a model is there."""

import json
import os
import pathlib
import subprocess

import pytest
import yaml
from train_support import BINARY, ROOT, protrain, random_samples, write_config, write_tokens

HARDWARE = ROOT / "hardware"
GPT2 = {"model_type": "gpt2", "n_layer": 6, "n_embd": 256, "n_head": 4, "n_positions": 128, "vocab_size": 1003,
        "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "tie_word_embeddings": True}


@pytest.fixture
def shape(tmp_path):
    folder = tmp_path / "shape"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GPT2))
    return folder


@pytest.fixture
def config(shape, tmp_path):
    return write_config(tmp_path / "c.yaml", config_name=str(shape), train_file=str(tmp_path / "absent.jsonl"),
                        output_dir=str(tmp_path / "out"), cutoff_len=128, per_device_train_batch_size=8)


def keys_of(config):
    return yaml.safe_load(config.read_text())


def plan(config, *words, hardware="rtx4090", check=True):
    return protrain("plan", config, "--hardware", HARDWARE / f"{hardware}.json", *words, check=check)


def answer(config, *words, **more):
    return json.loads(plan(config, *words, "--json", **more).stdout)


def test_the_answer_says_plan_bytes_time_lanes_limit_and_search(config):
    text = plan(config).stdout
    for word in ("an estimate: nothing was measured", "NVIDIA RTX 4090", "knobs", "chunk_bytes", "s a step", "tokens/s",
                 "estimated rates", "lanes work compute", "binds", "simulated", "device", "optimizer state", "note"):
        assert word in text, f"{word}\n{text}"
    whole = answer(config)
    assert whole["schema"] == 1 and whole["fits"] and whole["estimate"] and whole["machine"] == "NVIDIA RTX 4090"
    prediction = whole["prediction"]
    tokens = 8 * 128
    assert prediction["tokens_per_second"] == pytest.approx(tokens / prediction["step_seconds"])
    assert 0 < prediction["lanes"]["compute"] <= prediction["step_seconds"]
    assert prediction["binding"] and prediction["search"]["simulated"] <= 500 and prediction["search"]["space"] >= 1
    device = whole["memory"]["device"]
    assert 0 < device["planned_bytes"] <= device["limit_bytes"] and device["by_tag"]["weights"] > 0
    assert len(whole["plan"]["activation"]) == GPT2["n_layer"] + 2


def test_tags_sum_to_what_is_planned_and_the_table_says_what_is_kept_of_the_host(config):
    for words in ((), ("--plan", '{"activation": "recompute", "n_persist": 0, "place": {"head": "cpu", "embedding": "cpu"}}')):
        memory = answer(config, *words)["memory"]
        for tier in ("device", "pinned", "pageable"):
            planned, tags = memory[tier]["planned_bytes"], sum(memory[tier]["by_tag"].values())
            assert 0.95 * planned <= tags <= planned, (tier, words)
            gaps = [line for line in plan(config, *words).stdout.splitlines() if f" {tier} " in line and ", gaps " in line]
            assert bool(gaps) == (planned - tags > planned // 1000)
    here = ("plan", config, "--device", "cpu", "--bf16", "false", "--cutoff_len", "32", "--per_device_train_batch_size", "1")
    host = json.loads(protrain(*here, "--json").stdout)["memory"]["host"]
    assert host["reserve_bytes"] == host["limit_bytes"] // 31
    assert "more are left to the system" in protrain(*here).stdout
    for limit in (("--host_memory_limit", "2GiB"), ("--host-memory", "2GiB")):
        assert "left to the system" not in protrain(*here, *limit).stdout


def test_rows_are_those_of_the_data_where_it_is_prepared_and_else_of_the_configuration(config, tmp_path):
    presumed = answer(config)
    assert presumed["batch"]["train_shapes"] == [{"rows": 8, "row_tokens": 128, "packed": False}]
    assert any("presumed" in note for note in presumed["notes"])
    data = write_tokens(tmp_path / "t.ptk", random_samples([40] * 20))
    known = answer(config, "--train_file", data)
    assert known["batch"]["train_shapes"][0]["row_tokens"] < 128
    assert not any("presumed" in note for note in known["notes"])
    packed = answer(config, "--packing")
    assert packed["batch"]["train_shapes"] == [{"rows": 8, "row_tokens": 128, "packed": True}]


def test_data_that_train_finds_prepared_in_the_cache_is_found(config, tmp_path):
    raw = tmp_path / "ids.jsonl"
    raw.write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in random_samples([40] * 20)))
    config = write_config(tmp_path / "raw.yaml", **{**keys_of(config), "train_file": str(raw), "validation_file": str(raw),
                                                    "dataset_prepared_path": str(tmp_path / "prepared")})
    presumed = answer(config)
    assert any("train_file is not prepared yet, which protrain profile and train do" in note for note in presumed["notes"])
    assert not (tmp_path / "prepared").exists()
    protrain("train", config, "--device", "cpu", "--bf16", "false", "--max_steps", "1")
    known = answer(config)
    assert not any("presumed" in note for note in known["notes"])
    assert known["batch"]["train_shapes"][0]["row_tokens"] < presumed["batch"]["train_shapes"][0]["row_tokens"] == 128
    prepared, = (tmp_path / "prepared").glob("*.ptk")  # the same for both keys
    whole = prepared.read_bytes()
    prepared.write_bytes(whole[:-7])
    assert any("presumed" in note for note in answer(config)["notes"]) and prepared.read_bytes() == whole[:-7]


def test_rows_beyond_a_rotary_models_positions_are_warned_of_once_whether_data_is_prepared_or_not(tmp_path):
    shape = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 1003, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    data = write_tokens(tmp_path / "t.ptk", random_samples([40] * 20))
    for file in (data, tmp_path / "absent.jsonl"):
        config = write_config(tmp_path / "c.yaml", config_name=str(tmp_path), train_file=str(file),
                              output_dir=str(tmp_path / "out"), cutoff_len=128, per_device_train_batch_size=2)
        assert plan(config).stderr.count("cutoff_len: 128 is more than the 64 positions") == 1
        assert "positions" not in plan(config, "--cutoff_len", "64").stderr


def test_less_memory_and_slower_links_never_make_a_step_faster(config):
    big = ("--per_device_train_batch_size", "64", "--gradient_accumulation_steps", "2")
    free = answer(config, *big)
    need = free["memory"]["device"]["planned_bytes"] + free["memory"]["device"]["outside_bytes"] + (64 << 20)
    tight = answer(config, *big, "--device-memory", int(need * 0.85))
    assert tight["memory"]["device"]["planned_bytes"] < free["memory"]["device"]["planned_bytes"]
    assert tight["prediction"]["step_seconds"] >= 0.998 * free["prediction"]["step_seconds"]
    slow = answer(config, *big, "--device-memory", int(need * 0.85), "--h2d", "0.5", "--d2h=0.5")
    assert slow["prediction"]["step_seconds"] >= 0.998 * tight["prediction"]["step_seconds"]


def test_knobs_and_keys_of_the_configuration_hold(config):
    own = answer(config, "--plan", '{"activation": "recompute", "order": "micro_batch"}', "--bf16", "false")
    layers = own["plan"]["activation"][1:-1]
    assert set(layers) == {"recompute"} and own["batch"]["compute_dtype"] == "float32"
    capped = answer(config, "--device_memory_limit", "1GiB")
    device = capped["memory"]["device"]
    assert device["limit_bytes"] == 1 << 30 >= device["planned_bytes"] + device["outside_bytes"]


def test_what_a_plan_takes_of_the_device_in_all_is_a_limit_that_fits_it(config, tmp_path):
    tail = ("--per_device_train_batch_size", "64", "--device_memory_limit", "1GiB")
    first = plan(config, *tail, "--plan", '{"n_persist": 0, "activation": "swap"}', "--json").stdout
    (tmp_path / "answer.json").write_text(first)
    device, pinned = json.loads(first)["memory"]["device"], json.loads(first)["memory"]["pinned"]["planned_bytes"]
    need = device["planned_bytes"] + device["outside_bytes"]
    assert pinned > 0 and need < 1 << 30
    same = answer(config, *tail[:2], "--plan", tmp_path / "answer.json", "--device_memory_limit", need)
    assert same["memory"]["device"]["planned_bytes"] + same["memory"]["device"]["outside_bytes"] == need
    result = plan(config, *tail[:2], "--plan", tmp_path / "answer.json", "--device_memory_limit", need - 1, check=False)
    assert result.returncode == 3 and "1 bytes short" in result.stderr, result.stderr


def test_the_answer_is_a_plan_for_the_next_question(config, tmp_path):
    first = plan(config, "--plan", '{"activation": "recompute"}', "--json")
    (tmp_path / "answer.json").write_text(first.stdout)
    again = answer(config, "--plan", tmp_path / "answer.json")
    assert again["plan"] == json.loads(first.stdout)["plan"]


def test_a_limit_above_what_is_there_is_said_with_both_values(config, tmp_path):
    above = ("--device_memory_limit", "900GiB", "--host_memory_limit", "9000GiB")
    there = ("--device-memory", "20GiB", "--host-memory", "30GiB")
    said = [f"{key}_memory_limit (command line): {limit}.00 GiB ({limit << 30} bytes) is above the {has}.00 GiB "
            f"({has << 30} bytes) that the {key} has for a run" for key, limit, has in (("device", 900, 20), ("host", 9000, 30))]
    notes = answer(config, *above, *there)["notes"]
    assert all(any(note.startswith(text) for note in notes) for text in said), notes
    assert not any("_memory_limit" in note for note in answer(config, "--device_memory_limit", "20GiB", *there)["notes"])
    here = ("--device", "cpu", "--bf16", "false", "--cutoff_len", "32", "--per_device_train_batch_size", "1", "--train_file",
            write_tokens(tmp_path / "t.ptk", random_samples([40] * 20)), "--device_memory_limit", "9000TiB",
            "--host_memory_limit", "9000TiB")
    notes = json.loads(protrain("plan", config, *here, "--json").stdout)["notes"]
    log = protrain("train", config, *here, "--max_steps", "1").stderr
    for key in ("device", "host"):
        text = f"{key}_memory_limit (command line): 9216000.00 GiB"
        assert any(note.startswith(text) for note in notes) and f"warning: {text}" in log, log


def test_the_micro_batch_is_chosen_when_it_is_auto(config):
    text = config.read_text().replace("per_device_train_batch_size: 8", "per_device_train_batch_size: auto")
    config.write_text(text + "train_batch_size: 12\n")
    batch = answer(config)["batch"]
    assert batch["per_device_train_batch_size"] * batch["gradient_accumulation_steps"] == 12


def test_what_does_not_fit_ends_with_code_3_the_shortfall_and_a_change_that_fits(config):
    result = plan(config, "--device-memory", "900MiB", "--per_device_train_batch_size", "256", check=False)
    assert result.returncode == 3
    (line,) = [line for line in result.stderr.splitlines() if "does not fit" in line]
    assert "device memory: need" in line and "bytes short" in line and "would fit" in line, line
    words = line.split("; ")[-1].replace(":", "").split()
    rows = int(words[words.index("per_device_train_batch_size") + 1])
    accumulation = int(words[words.index("gradient_accumulation_steps") + 1])
    assert rows * accumulation == 256
    plan(config, "--device-memory", "900MiB", "--per_device_train_batch_size", rows, "--gradient_accumulation_steps",
         accumulation)
    whole = plan(config, "--device-memory", "900MiB", "--per_device_train_batch_size", "256", "--json", check=False)
    missing = json.loads(whole.stdout)["missing"]
    assert whole.returncode == 3 and missing["device_bytes"] > 0 and missing["nearest_change"]


@pytest.mark.parametrize("words", [("plan", "--json"), ("train", "--help"), ("version",)])
def test_an_answer_that_cannot_be_written_is_an_error(config, words):
    asked = [str(config), "--hardware", str(HARDWARE / "h200.json")] if words[0] == "plan" else []
    command = [str(BINARY), words[0], *asked, *words[1:]]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert result.returncode == 5 and "the answer cannot be written" in result.stderr, result.stderr


def test_a_host_that_is_too_small_is_named_and_the_size_that_would_do_does(config):
    result = plan(config, "--host-memory", "100MiB", check=False)
    assert result.returncode == 3 and "host memory: need" in result.stderr, result.stderr
    enough = result.stderr.split("--host-memory ")[-1].split()[0]
    plan(config, "--host-memory", enough)


@pytest.mark.parametrize("words, message", [
    (("--gpus", "2"), "runs on several GPUs come later"),
    (("--gpus", "half"), "--gpus: half: it must be a whole number"),
    (("--h2d", "fast"), "--h2d: fast: it must be a number of GB/s"),
    (("--h2d", "-3"), "--h2d: -3: it must be"),
    (("--device-memory", "much"), "--device-memory: much: it must be a size such as 24GiB"),
    (("--device-memory", "0.4"), "--device-memory: 0.4: it must be a size such as 24GiB"),
    (("--host-memory",), "--host-memory has no value"),
    (("--h2d", "3", "--h2d=4"), "--h2d is given twice, as '3' and as '4'"),
    (("--device", "cpu"), "command line: --device cpu and --hardware are both given, but the hardware is a GPU"),
    (("--profile", "absent.json"), "--profile: absent.json does not exist"),
    (("--cutoff_len", "4096"), "more than the model's 128 positions"),
    (("--cutof_len", "64"), "did you mean 'cutoff_len'"),
])
def test_a_wrong_option_is_one_line_and_code_2(config, words, message):
    result = plan(config, *words, check=False)
    assert result.returncode == 2 and message in result.stderr and not result.stdout, result.stderr


def test_a_wrong_hardware_file_is_named(config, tmp_path):
    result = protrain("plan", config, "--hardware", tmp_path / "x.json", check=False)
    assert result.returncode == 2 and "x.json does not exist" in result.stderr
    result = protrain("plan", config, "--hardware", tmp_path, check=False)
    assert result.returncode == 2 and "--hardware: " in result.stderr and "directory" in result.stderr, result.stderr
    result = protrain("plan", config, "--hardware", "", check=False)
    assert result.returncode == 2 and "--hardware: it is empty" in result.stderr, result.stderr
    (tmp_path / "x.json").write_text('{"name": "x", "flops": 3}')
    result = protrain("plan", config, "--hardware", tmp_path / "x.json", check=False)
    assert result.returncode == 2 and "x.json: flops is no key of a machine" in result.stderr


def test_what_is_no_regular_file_is_refused_and_not_waited_for(config, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for words in (("--plan", fifo), ("--hardware", fifo), ("--profile", fifo)):
        result = protrain("plan", config, *words, check=False)
        assert result.returncode == 2 and f"{fifo}: not a regular file" in result.stderr, result.stderr
    for path in (fifo, tmp_path):
        result = protrain("plan", path, check=False)
        assert result.returncode == 2 and f"{path}: a configuration must be a regular file" in result.stderr, result.stderr


def test_a_disk_is_noted_though_no_plan_uses_it(config):
    assert any("no plan uses one yet" in note for note in answer(config, "--disk", "2")["notes"])


def test_every_hardware_file_and_published_configuration_gives_a_plan(monkeypatch):
    monkeypatch.chdir(ROOT)
    for hardware in sorted(path.stem for path in HARDWARE.glob("*.json")):
        for model in ("gpt2-1b", "gpt2-10b"):
            whole = answer(pathlib.Path("examples/published") / f"{model}.yaml", hardware=hardware)
            assert whole["fits"], (hardware, model)


def test_without_hardware_it_is_this_machine_and_its_profile_can_be_taken_elsewhere(config, tmp_path):
    here = ("--device", "cpu", "--bf16", "false", "--cutoff_len", "32", "--per_device_train_batch_size", "1")
    cache = {"PROTRAIN_CACHE": str(tmp_path / "cache")}
    result = json.loads(protrain("plan", config, *here, "--json", env=cache).stdout)
    assert result["fits"] and not result["estimate"] and result["prediction"]["measured"]
    data = write_tokens(tmp_path / "t.ptk", random_samples([40] * 20))
    protrain("profile", config, *here, "--train_file", data, "--output", tmp_path / "p.json", env=cache)
    words = ("plan", config, *here, "--train_file", data, "--profile", tmp_path / "p.json", "--json")
    taken = json.loads(protrain(*words, "--device-memory", "2GiB", "--host-memory", "4GiB").stdout)
    assert taken["fits"] and not taken["estimate"] and taken["machine"] == result["machine"]
    assert taken["memory"]["device"]["by_tag"]["weights"] > 0
    # The profile says that it is one of a CPU.
    undecided = [word for at, word in enumerate(words) if "--device" not in words[max(at - 1, 0):at + 1]]
    said = json.loads(protrain(*undecided, "--device-memory", "2GiB", "--host-memory", "4GiB").stdout)
    assert said["memory"] == taken["memory"] and said["notes"] == taken["notes"]
    # So all that lies on its device lies on the host.
    assert protrain(*undecided, "--device-memory", "2GiB", "--host-memory", "540MiB", check=False).returncode == 3
    of_cuda = write_config(tmp_path / "cuda.yaml", **{**keys_of(config), "device": "cuda", "compute_threads": 3})
    aside = json.loads(protrain("plan", of_cuda, *undecided[2:], "--device-memory", "2GiB", "--host-memory", "4GiB").stdout)
    assert aside["memory"] == taken["memory"]
    for key in ("device: cuda", "compute_threads: 3"):
        assert any(note.startswith(f"{key} is left aside") for note in aside["notes"]), aside["notes"]
    other = protrain(*words, "--device-memory", "2GiB", "--host-memory", "4GiB", "--packing", check=False)
    assert other.returncode == 2 and "other shapes" in other.stderr, other.stderr
    nowhere = protrain(*words, check=False)
    assert nowhere.returncode == 2 and "--device-memory and --host-memory" in nowhere.stderr, nowhere.stderr
