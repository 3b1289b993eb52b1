"""Tiny models with awkward shapes, one or more of every family, and the reference that transformers computes for them."""

import pathlib

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()
logging.set_verbosity_error()

LLAMA = dict(model_type="llama", vocab_size=503, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5,
             tie_word_embeddings=False)
GPT2 = dict(model_type="gpt2", vocab_size=503, n_embd=48, n_layer=2, n_head=3, n_positions=80, attn_pdrop=0.0,
            resid_pdrop=0.0, embd_pdrop=0.0)
OPT = dict(model_type="opt", vocab_size=503, hidden_size=48, ffn_dim=112, num_hidden_layers=2, num_attention_heads=3,
           max_position_embeddings=80, dropout=0.0, attention_dropout=0.0, pad_token_id=1, word_embed_proj_dim=48)


def rope(**parameters):
    return dict(rope_parameters=dict(rope_theta=10000.0, **parameters))


CONFIGS = {
    "llama": LLAMA,
    # No member of a group fills whole multiples of 256 elements: products of their own.
    "llama_odd": dict(LLAMA, hidden_size=40, num_attention_heads=5, num_key_value_heads=1, intermediate_size=77,
                      vocab_size=1009),
    "llama_tied_bias": dict(LLAMA, vocab_size=1009, tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                            pad_token_id=0, num_hidden_layers=3),
    "llama_head_dim": dict(LLAMA, head_dim=24, hidden_act="gelu_pytorch_tanh"),
    "llama_linear": dict(LLAMA, **rope(rope_type="linear", factor=3.0)),
    "llama_llama3": dict(LLAMA, head_dim=32, **rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                                    high_freq_factor=4.0, original_max_position_embeddings=64)),
    "llama_yarn": dict(LLAMA, **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    "llama_yarn_factor": dict(LLAMA, **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64,
                                            attention_factor=0.8, beta_fast=16.0, beta_slow=2.0, truncate=False)),
    "llama_yarn_mscale": dict(LLAMA, **rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=32,
                                            mscale=1.0, mscale_all_dim=0.5)),
    "mistral_window": dict(LLAMA, model_type="mistral", sliding_window=16, num_key_value_heads=1),
    "mistral_full": dict(LLAMA, model_type="mistral", sliding_window=None, head_dim=8),
    "qwen2": dict(LLAMA, model_type="qwen2", tie_word_embeddings=True),
    # Weights and biases of a group without gaps: one product.
    "qwen2_joined": dict(LLAMA, model_type="qwen2", hidden_size=256, intermediate_size=128, num_key_value_heads=4),
    "qwen2_window": dict(LLAMA, model_type="qwen2", num_hidden_layers=3, use_sliding_window=True, sliding_window=16,
                         max_window_layers=1),
    "qwen3": dict(LLAMA, model_type="qwen3", head_dim=24, vocab_size=1009),
    "qwen3_tied": dict(LLAMA, model_type="qwen3", head_dim=16, tie_word_embeddings=True, attention_bias=True,
                       num_key_value_heads=4, use_sliding_window=True, sliding_window=16,
                       layer_types=["sliding_attention", "full_attention"]),
    "gpt2": GPT2,
    "gpt2_untied": dict(GPT2, tie_word_embeddings=False, n_inner=100, activation_function="gelu", n_head=4),
    "opt": OPT,
    "opt_post_norm": dict(OPT, do_layer_norm_before=False, word_embed_proj_dim=24),
    "opt_untied": dict(OPT, tie_word_embeddings=False, enable_bias=False, activation_function="gelu",
                       _remove_final_layer_norm=True),
}

# Biases of keys have a gradient of zero in theory without rotary positions and an ill-conditioned one with them.
K_BIASES = ("self_attn.k_proj.bias",)

LENGTHS = [37, 5, 64, 22, 48, 13, 31, 9]  # tokens of the samples
IGNORED = -100


def config_of(name):
    settings = dict(CONFIGS[name])
    return CONFIG_MAPPING[settings["model_type"]].from_dict(settings)


def make_model(name, folder):
    """Saves the model with weights that bf16 can hold, none of them at a special value (ones, zeros)."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    model = AutoModelForCausalLM.from_config(config_of(name))
    with torch.no_grad():
        for parameter in model.parameters():
            draw = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 2:
                parameter.copy_(draw * 0.1)
            else:
                parameter.copy_(torch.round(parameter) + draw * 0.1)
            parameter.copy_(parameter.bfloat16().float())
    model.save_pretrained(folder)
    return pathlib.Path(folder)


def make_samples(name, seed):
    """Eight uneven samples: (tokens, labels). A label is the token to predict at its position."""
    generator = torch.Generator().manual_seed(seed)
    settings = CONFIGS[name]
    samples = []
    for number, length in enumerate(LENGTHS):
        tokens = torch.randint(2, settings["vocab_size"], (length,), generator=generator)
        if settings.get("pad_token_id") is not None and length > 10:
            tokens[length // 2] = settings["pad_token_id"]  # seen as input and as target
        labels = torch.cat([tokens[1:], torch.tensor([IGNORED])])
        labels[: (number % 3) * 2] = IGNORED  # a prompt
        samples.append((tokens.tolist(), labels.tolist()))
    return samples


def unpacked(samples, rows):
    """Micro-batches of `rows` samples, each padded to the longest sample of all."""
    longest = max(len(tokens) for tokens, _ in samples)
    batches = []
    for first in range(0, len(samples), rows):
        batch = dict(rows=rows, row_tokens=longest, packed=False, tokens=[], labels=[], positions=[],
                     sample_starts=[longest * i for i in range(rows + 1)])
        for tokens, labels in samples[first:first + rows]:
            padding = longest - len(tokens)
            batch["tokens"] += tokens + [0] * padding
            batch["labels"] += labels + [IGNORED] * padding
            batch["positions"] += list(range(longest))
        batches.append(batch)
    return batches


def packed(samples, row_tokens, rows):
    """Micro-batches of rows that hold whole samples one after the other; padding is a sample of its own."""
    lines, order = [], []
    for number in sorted(range(len(samples)), key=lambda i: -len(samples[i][0])):
        length = len(samples[number][0])
        line = next((line for line in lines if sum(len(samples[i][0]) for i in line) + length <= row_tokens), None)
        if line is None:
            line = []
            lines.append(line)
        line.append(number)
    while len(lines) % rows:
        lines.append([])
    batches = []
    most = len(samples) + rows
    for first in range(0, len(lines), rows):
        batch = dict(rows=rows, row_tokens=row_tokens, packed=True, tokens=[], labels=[], positions=[],
                     sample_starts=[0])
        places = []
        for line in lines[first:first + rows]:
            for number in line:
                tokens, labels = samples[number]
                places.append((number, len(batch["tokens"])))
                batch["tokens"] += tokens
                batch["labels"] += labels
                batch["positions"] += list(range(len(tokens)))
                batch["sample_starts"].append(len(batch["tokens"]))
            padding = -len(batch["tokens"]) % row_tokens
            if not line:
                padding = row_tokens
            if padding:
                batch["tokens"] += [0] * padding
                batch["labels"] += [IGNORED] * padding
                batch["positions"] += list(range(padding))
                batch["sample_starts"].append(len(batch["tokens"]))
        batch["sample_starts"] += [rows * row_tokens] * (most + 1 - len(batch["sample_starts"]))
        order.append(places)
        batches.append(batch)
    return batches, order


def load(folder, dtype=torch.float32):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.train()


def named_gradients(model):
    return {name: parameter.grad.float() for name, parameter in model.named_parameters()}


def reference(folder, samples, dtype=torch.float32):
    """Loss sum, logits of each sample and gradients of the mean over all supervised tokens, samples one by one."""
    model = load(folder, dtype)
    supervised = sum(label != IGNORED for _, labels in samples for label in labels)
    total, all_logits = 0.0, []
    for tokens, labels in samples:
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        loss = torch.nn.functional.cross_entropy(logits.float(), torch.tensor(labels), reduction="sum",
                                                 ignore_index=IGNORED)
        (loss / supervised).backward()
        total += loss.item()
        all_logits.append(logits.detach().float())
    return dict(loss=total, logits=all_logits, gradients=named_gradients(model))


def batch_reference(folder, samples, dtype):
    """The same from one padded batch: no gradient is rounded more than once."""
    model = load(folder, dtype)
    batch = unpacked(samples, len(samples))[0]
    shape = (batch["rows"], batch["row_tokens"])
    tokens, labels = torch.tensor(batch["tokens"]).view(shape), torch.tensor(batch["labels"])
    mask = torch.tensor([[int(i < len(tokens_)) for i in range(shape[1])] for tokens_, _ in samples])
    logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum", ignore_index=IGNORED)
    (loss / (labels != IGNORED).sum()).backward()
    logits = logits.detach().float().view(*shape, -1)
    return dict(loss=loss.item(), logits=[logits[i, : len(samples[i][0])] for i in range(len(samples))],
                gradients=named_gradients(model))
