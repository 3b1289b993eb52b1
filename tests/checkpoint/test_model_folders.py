"""Model folders against the libraries that everyone uses: what transformers saves is read, what `protrain export` writes
loads in transformers without a warning and gives the same logits, and each fault of the files is refused by name."""

import json
import logging
import os
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]
PROTRAIN = Path(os.environ.get("PROTRAIN_BUILD", ROOT / "build" / "release")) / "bin" / "protrain"

SHAPE = dict(vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
             bos_token_id=1, eos_token_id=2, pad_token_id=0)
GATED = dict(SHAPE, intermediate_size=40, num_key_value_heads=2)
CONFIGS = {
    "gpt2": transformers.GPT2Config(vocab_size=61, n_embd=24, n_layer=2, n_head=4, n_positions=64, attn_pdrop=0.0,
                                    bos_token_id=1, eos_token_id=2),
    "opt": transformers.OPTConfig(**SHAPE, ffn_dim=40, word_embed_proj_dim=24),
    "llama": transformers.LlamaConfig(**GATED),
    "llama-tied": transformers.LlamaConfig(**GATED, tie_word_embeddings=True),
    "mistral": transformers.MistralConfig(**GATED),
    "qwen2": transformers.Qwen2Config(**GATED),
    "qwen3": transformers.Qwen3Config(**GATED, head_dim=10),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def run(*arguments, code=0):
    result = subprocess.run([PROTRAIN, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert result.returncode == code, result.stderr
    return result.stderr


def make_model(family, dtype=torch.float32):
    torch.manual_seed(7)
    return transformers.AutoModelForCausalLM.from_config(CONFIGS[family]).to(dtype).eval()


class Listener(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def load_silently(folder):
    """The model, in the dtype of its files; fails on any warning or any key that does not match."""
    listener, logger = Listener(), logging.getLogger("transformers")
    logger.addHandler(listener)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto",
                                                                           output_loading_info=True)
    finally:
        logger.removeHandler(listener)
    assert listener.lines == []
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], (kind, info[kind])
    return model.eval()


def logits(model):
    ids = torch.arange(40).reshape(2, 20) % 61
    with torch.no_grad():
        return model(ids).logits


def weights(folder):
    tensors = {}
    for path in sorted(Path(folder).glob("model*.safetensors")):
        tensors.update(load_file(path))
    return tensors


@pytest.mark.parametrize("family", CONFIGS)
def test_what_transformers_saves_comes_back_bit_for_bit(family, tmp_path):
    model = make_model(family)
    model.save_pretrained(tmp_path / "from")
    run("export", tmp_path / "from", tmp_path / "to")
    before, after = weights(tmp_path / "from"), weights(tmp_path / "to")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == torch.float32
        assert torch.equal(after[name], tensor), name
    assert torch.equal(logits(load_silently(tmp_path / "to")), logits(model))


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_dtype_is_as_asked_and_as_torch_rounds(family, dtype, tmp_path):
    make_model(family).save_pretrained(tmp_path / "from")
    run("export", tmp_path / "from", tmp_path / "to", "--dtype", dtype)
    after = weights(tmp_path / "to")
    for name, tensor in weights(tmp_path / "from").items():
        assert torch.equal(after[name], tensor.to(DTYPES[dtype])), name
    with safe_open(tmp_path / "to" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    config = json.loads((tmp_path / "to" / "config.json").read_text())
    assert config.get("dtype", config.get("torch_dtype")) == dtype
    loaded = load_silently(tmp_path / "to")
    assert loaded.dtype == DTYPES[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_default_dtype_is_that_of_the_input(dtype, tmp_path):
    make_model("llama", DTYPES[dtype]).save_pretrained(tmp_path / "from")
    run("export", tmp_path / "from", tmp_path / "to")
    assert {tensor.dtype for tensor in weights(tmp_path / "to").values()} == {DTYPES[dtype]}


def test_an_old_config_with_torch_dtype_loads_without_a_warning(tmp_path):
    make_model("llama").save_pretrained(tmp_path / "from")
    path = tmp_path / "from" / "config.json"
    config = json.loads(path.read_text())
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config))
    run("export", tmp_path / "from", tmp_path / "to", "--dtype", "bfloat16")
    assert load_silently(tmp_path / "to").dtype == torch.bfloat16


def test_shards_that_transformers_wrote_are_read(tmp_path):
    model = make_model("qwen3")
    model.save_pretrained(tmp_path / "from", max_shard_size="20KB")
    assert len(list((tmp_path / "from").glob("model-*.safetensors"))) > 2
    run("export", tmp_path / "from", tmp_path / "to")
    assert torch.equal(logits(load_silently(tmp_path / "to")), logits(model))


@pytest.mark.parametrize("family,prefix", [("gpt2", "transformer."), ("opt", "model."), ("llama", "model.")])
def test_files_without_the_base_prefix_are_read(family, prefix, tmp_path):
    model = make_model(family)
    model.save_pretrained(tmp_path / "from")
    tensors = {name.removeprefix(prefix): tensor for name, tensor in weights(tmp_path / "from").items()}
    if family == "gpt2":
        for layer in range(2):
            tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
    save_file(tensors, tmp_path / "from" / "model.safetensors")
    errors = run("export", tmp_path / "from", tmp_path / "to")
    assert "ignores" not in errors
    assert torch.equal(logits(load_silently(tmp_path / "to")), logits(model))


def test_a_tied_file_may_hold_the_matrix_twice_only_when_equal(tmp_path):
    model = make_model("llama-tied")
    model.save_pretrained(tmp_path / "from")
    path = tmp_path / "from" / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, path)
    run("export", tmp_path / "from", tmp_path / "to")
    assert "lm_head.weight" not in weights(tmp_path / "to")
    assert torch.equal(logits(load_silently(tmp_path / "to")), logits(model))
    tensors["lm_head.weight"][3, 5] += 1
    save_file(tensors, path)
    message = run("export", tmp_path / "from", tmp_path / "again", code=5)
    assert "lm_head.weight" in message and "model.embed_tokens.weight" in message and f"element {3 * 24 + 5} " in message


def faulty(folder, fault):
    """Breaks one thing; what the message must name."""
    index = folder / "model.safetensors.index.json"
    shards = sorted(folder.glob("model-*.safetensors"))
    weight_map = json.loads(index.read_text())["weight_map"]
    in_last = sorted(name for name, shard in weight_map.items() if shard == shards[-1].name)
    tensors = load_file(shards[-1])
    if fault == "missing shard":
        shards[-1].unlink()
        return [shards[-1].name]
    if fault == "one byte short":
        with open(shards[-1], "r+b") as file:
            file.truncate(shards[-1].stat().st_size - 1)
        return [shards[-1].name, "needs bytes"]
    if fault == "index names an absent tensor":
        del tensors[in_last[0]]
        save_file(tensors, shards[-1])
        return ["index.json", in_last[0], shards[-1].name]
    if fault == "wrong shape":
        tensors[in_last[0]] = tensors[in_last[0]][..., :-1].contiguous()
        save_file(tensors, shards[-1])
        return [shards[-1].name, in_last[0], "shape"]
    if fault == "duplicate tensor":
        first = next(name for name, shard in weight_map.items() if shard == shards[0].name)
        save_file({**tensors, first: load_file(shards[0])[first]}, shards[-1])
        return [first, shards[0].name, shards[-1].name]
    if fault == "nan":
        tensors[in_last[0]].view(-1)[4] = float("nan")
        save_file(tensors, shards[-1])
        return [shards[-1].name, in_last[0], "element 4 is nan"]
    raise AssertionError(fault)


@pytest.mark.parametrize("fault", ["missing shard", "one byte short", "index names an absent tensor", "wrong shape",
                                   "duplicate tensor", "nan"])
def test_each_fault_of_the_files_exits_with_5_and_names_its_place(fault, tmp_path):
    make_model("llama").save_pretrained(tmp_path / "from", max_shard_size="20KB")
    named = faulty(tmp_path / "from", fault)
    message = run("export", tmp_path / "from", tmp_path / "to", code=5)
    assert len(message.strip().splitlines()) == 1
    for part in named:
        assert part in message


def test_a_stray_shard_is_ignored_with_a_warning(tmp_path):
    model = make_model("llama")
    model.save_pretrained(tmp_path / "from", max_shard_size="20KB")
    (tmp_path / "from" / "model-00099-of-00099.safetensors").write_bytes(b"junk")
    assert "model-00099-of-00099.safetensors" in run("export", tmp_path / "from", tmp_path / "to")
    assert torch.equal(logits(load_silently(tmp_path / "to")), logits(model))


@pytest.mark.parametrize("family", CONFIGS)
def test_random_weights_have_the_distributions_of_transformers(family, tmp_path):
    """Tensor by tensor: constants are equal; means and deviations agree within five standard errors of both samples."""
    (tmp_path / "config").mkdir()
    CONFIGS[family].save_pretrained(tmp_path / "config")
    run("init", tmp_path / "config", tmp_path / "to", "--seed", 3, "--dtype", "float32")
    reference = make_model(family)
    reference.save_pretrained(tmp_path / "reference")
    ours, theirs = weights(tmp_path / "to"), weights(tmp_path / "reference")
    assert ours.keys() == theirs.keys()
    for name, wanted in theirs.items():
        found = ours[name].double()
        wanted = wanted.double()
        assert found.shape == wanted.shape
        if wanted.std(correction=0) == 0:
            assert torch.equal(found, wanted), name
            continue
        count, deviation = wanted.numel(), wanted.std()
        assert abs(found.mean() - wanted.mean()) < 5 * deviation * (2 / count) ** 0.5, name
        assert abs(found.std() / deviation - 1) < 5 * (1 / count) ** 0.5, name
        assert torch.equal((found == 0).all(-1), (wanted == 0).all(-1)), name  # padding rows
    run("init", tmp_path / "config", tmp_path / "again", "--seed", 3, "--dtype", "float32")
    same = (tmp_path / "to/model.safetensors").read_bytes() == (tmp_path / "again/model.safetensors").read_bytes()
    assert same
    load_silently(tmp_path / "to")


def test_tokenizer_files_travel_along(tmp_path):
    make_model("llama").save_pretrained(tmp_path / "from")
    names = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "merges.txt", "vocab.json"]
    for name in names:
        (tmp_path / "from" / name).write_text(f'"{name}"')
    shutil.copy(tmp_path / "from" / "config.json", tmp_path / "from" / "unrelated.json")
    run("export", tmp_path / "from", tmp_path / "to")
    for name in names + ["generation_config.json"]:
        assert (tmp_path / "to" / name).read_bytes() == (tmp_path / "from" / name).read_bytes()
    assert not (tmp_path / "to" / "unrelated.json").exists()
