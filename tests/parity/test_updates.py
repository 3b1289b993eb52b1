"""Ten updates of `protrain train` against torch.optim.AdamW: clipping, warm-up, decay and accumulation."""

import json
import math
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import get_scheduler

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tiny_models as tiny  # noqa: E402

TOP = pathlib.Path(__file__).resolve().parents[2]
PROTRAIN = pathlib.Path(os.environ.get("PROTRAIN_BUILD", TOP / "build" / "release")) / "bin" / "protrain"
NAMES = ["llama_tied_bias", "llama_yarn", "mistral_window", "qwen2", "qwen3_tied", "gpt2", "opt", "opt_post_norm"]
UPDATES, ROWS, ACCUMULATION = 10, 2, 2
LENGTHS = [37, 5, 64, 22, 48, 13, 31, 9, 17, 60, 40, 3, 27, 33, 8, 55, 21, 44, 12, 29]  # five updates an epoch
KEYS = dict(learning_rate=1e-3, lr_scheduler_type="linear", warmup_steps=3, weight_decay=0.1, adam_beta1=0.9,
            adam_beta2=0.95, adam_epsilon=1e-8, max_grad_norm=0.5)


def make_samples():
    generator = torch.Generator().manual_seed(23)
    samples = []
    for number, length in enumerate(LENGTHS):
        tokens = torch.randint(2, 503, (length,), generator=generator).tolist()
        prompt = number % 3
        samples.append((tokens, [tiny.IGNORED] * prompt + tokens[prompt:]))
    return samples


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Pre-tokenised JSONL: labels stand at the token itself, as in transformers."""
    path = tmp_path_factory.mktemp("updates") / "train.jsonl"
    path.write_text("".join(json.dumps(dict(input_ids=tokens, labels=labels)) + "\n" for tokens, labels in make_samples()))
    return path


def without_k_bias(name, tensor, family):
    """GPT-2 keeps the biases of q, k and v in one tensor."""
    if family == "gpt2" and name.endswith("attn.c_attn.bias"):
        q, _, v = tensor.chunk(3)
        return torch.cat([q, v])
    return tensor


def reference(folder):
    model = tiny.load(folder)
    decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    optimizer = torch.optim.AdamW([dict(params=decayed, weight_decay=KEYS["weight_decay"]),
                                   dict(params=others, weight_decay=0.0)], lr=KEYS["learning_rate"],
                                  betas=(KEYS["adam_beta1"], KEYS["adam_beta2"]), eps=KEYS["adam_epsilon"])
    schedule = get_scheduler(KEYS["lr_scheduler_type"], optimizer, KEYS["warmup_steps"], UPDATES)
    samples, each = make_samples(), ROWS * ACCUMULATION
    rows = []
    for update in range(UPDATES):
        first = update * each % len(samples)
        chosen = samples[first : first + each]
        supervised = sum(label != tiny.IGNORED for _, labels in chosen for label in labels[1:])
        total = 0.0
        for tokens, labels in chosen:
            logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:]), reduction="sum",
                                                     ignore_index=tiny.IGNORED) / supervised
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), KEYS["max_grad_norm"])
        rows.append(dict(loss=total, grad_norm=norm.item(), learning_rate=schedule.get_last_lr()[0]))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return rows, {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", NAMES)
def test_ten_updates_are_those_of_adamw(name, data, tmp_path):
    if not PROTRAIN.exists():
        pytest.fail(f"{PROTRAIN} is missing: build it first")
    folder, output = tiny.make_model(name, tmp_path / "model"), tmp_path / "out"
    start = {key: parameter.detach().clone() for key, parameter in tiny.load(folder).named_parameters()}
    settings = dict(KEYS, model_name_or_path=str(folder), train_file=str(data), output_dir=str(output), cutoff_len=64,
                    dataset_prepared_path=str(data.parent / "prepared"), shuffle=False, packing=False,
                    per_device_train_batch_size=ROWS, gradient_accumulation_steps=ACCUMULATION, max_steps=UPDATES,
                    logging_steps=1, save_steps=0, bf16=False, device="cpu", seed=1)
    config = tmp_path / "train.yaml"
    config.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
    done = subprocess.run([PROTRAIN, "train", config], capture_output=True, text=True, timeout=300,
                          env=dict(os.environ, PYTHONPATH=str(TOP / "python"), PROTRAIN_PYTHON=sys.executable,
                                   OMP_WAIT_POLICY="passive"))
    assert done.returncode == 0, done.stderr

    expected, weights = reference(folder)
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "grad_norm" in row]
    assert len(rows) == UPDATES
    for row, wanted in zip(rows, expected):
        for key in wanted:
            assert row[key] == pytest.approx(wanted[key], rel=1e-5), (row["step"], key)
    assert expected[0]["grad_norm"] > KEYS["max_grad_norm"]  # else nothing was clipped

    ours = load_file(output / "model.safetensors")
    family = tiny.CONFIGS[name]["model_type"]
    for key, wanted in weights.items():
        if key.endswith(tiny.K_BIASES):
            most = UPDATES * KEYS["learning_rate"] * math.sqrt(wanted.numel())
            assert (ours[key] - start[key]).norm().item() <= 2 * most, key
            continue
        change, wanted_change = (without_k_bias(key, tensor - start[key], family) for tensor in (ours[key], wanted))
        assert (change - wanted_change).norm().item() <= 1e-3 * wanted_change.norm().item(), key
