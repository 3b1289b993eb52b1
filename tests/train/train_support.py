"""What the tests of `protrain train` share: tiny models, token files, running the program."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

BINARY = ROOT / "build" / "release" / "bin" / "protrain"
VOCABULARY = 503


def make_model(folder, **changes):
    """A random LLaMA-like model with awkward shapes, fp32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    options = dict(vocab_size=VOCABULARY, hidden_size=40, intermediate_size=72, num_hidden_layers=2,
                   num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
                   tie_word_embeddings=True)
    model = LlamaForCausalLM(LlamaConfig(**{**options, **changes}))
    model.save_pretrained(folder)
    return folder


def write_tokens(path, samples, masks=None, vocabulary=VOCABULARY):
    """A prepared token file; every token is supervised unless masks say otherwise."""
    import numpy as np
    from protrain.token_file import TokenFileWriter

    with TokenFileWriter(pathlib.Path(path), vocabulary) as writer:
        for i, sample in enumerate(samples):
            mask = masks[i] if masks else [1] * len(sample)
            writer.add(np.asarray(sample), np.asarray(mask, dtype=bool))
        writer.finish({})
    return path


def random_samples(lengths, seed=1):
    import numpy as np

    random = np.random.default_rng(seed)
    return [random.integers(0, VOCABULARY, length).tolist() for length in lengths]


def write_config(path, **keys):
    path.write_text("".join(f"{key}: {json.dumps(value) if isinstance(value, (list, str)) else str(value).lower()}\n"
                            for key, value in keys.items()))
    return path


def protrain(*words, env=None, check=True):
    result = subprocess.run([str(BINARY), *map(str, words)], capture_output=True, text=True,
                            env={**os.environ, **(env or {})}, timeout=300)
    if check:
        assert result.returncode == 0, result.stderr
    return result


def start(*words, env=None):
    return subprocess.Popen([str(BINARY), *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, **(env or {})})


def rows(output, kind="train"):
    lines = (pathlib.Path(output) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def weights(folder):
    from safetensors.torch import load_file

    return load_file(pathlib.Path(folder) / "model.safetensors")


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def long_data(tmp_path_factory):
    """400 samples of 5 to 24 tokens."""
    lengths = [5 + i * 7 % 20 for i in range(400)]
    return write_tokens(tmp_path_factory.mktemp("data") / "train.ptk", random_samples(lengths))
