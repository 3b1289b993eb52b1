"""The same job in PyTorch + transformers: bf16 weights and activations, fp32 master weights and AdamW state, the same
batches in the same order. Writes one JSON line a step and, on request, the final fp32 masters.

reference.py MODEL TOKENS.ptk OUT.jsonl --attention cudnn|flash [--save OUT.safetensors] (options as the config's keys)
"""
import argparse
import json
import struct
import time

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM


def read_tokens(path):
    """Tokens of a .ptk file (layout: src/data/token_file.h)."""
    with open(path, "rb") as file:
        header = file.read(128)
        magic, _, width, tokens = struct.unpack_from("<8sIIQ", header)
        assert magic == b"PTKTOK1\0", path
        offset = struct.unpack_from("<Q", header, 48)[0]
        file.seek(offset)
        return np.frombuffer(file.read(tokens * width), dtype="<u2" if width == 2 else "<u4").astype(np.int64)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("out")
    parser.add_argument("--attention", choices=["cudnn", "flash"], default="cudnn")
    parser.add_argument("--save")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--micro", type=int, default=4)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--warmup", type=int, default=2)
    options = parser.parse_args()

    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16, attn_implementation="sdpa").cuda()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    pairs = [(name, p, p.detach().float().clone()) for name, p in model.named_parameters()]
    decay = [master for name, _, master in pairs if master.dim() > 1]
    rest = [master for name, _, master in pairs if master.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                                  lr=options.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
    backend = SDPBackend.CUDNN_ATTENTION if options.attention == "cudnn" else SDPBackend.FLASH_ATTENTION
    tokens = read_tokens(options.tokens)
    with open(options.out, "w") as out, sdpa_kernel(backend):
        for step in range(options.steps):
            torch.cuda.synchronize()
            began = time.perf_counter()
            first_token = step * options.rows * options.length
            count = options.rows * options.length
            shape = (options.rows, options.length)
            rows = torch.from_numpy(tokens[first_token:first_token + count].reshape(shape)).cuda()
            # A row is a piece of one long sample: its last token has a next token too.
            labels = torch.from_numpy(tokens[first_token + 1:first_token + count + 1].reshape(shape)).cuda()
            total = 0.0
            for first in range(0, options.rows, options.micro):
                hidden = model.model(rows[first:first + options.micro]).last_hidden_state
                logits = model.lm_head(hidden)
                loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1),
                                                         labels[first:first + options.micro].flatten(),
                                                         reduction="sum") / count
                loss.backward()
                total += loss.item()
            norm = torch.sqrt(sum(p.grad.double().square().sum() for _, p, _ in pairs)).item()
            scale = min(1.0, 1.0 / (norm + 1e-6))
            # transformers' get_linear_schedule_with_warmup is not used: constant after warm-up
            for group in optimizer.param_groups:
                group["lr"] = options.lr * min(1.0, step / max(1, options.warmup))
            for _, p, master in pairs:
                master.grad = p.grad.float() * scale
                p.grad = None
            optimizer.step()
            with torch.no_grad():
                for _, p, master in pairs:
                    master.grad = None
                    p.copy_(master)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - began
            row = {"step": step + 1, "loss": total, "grad_norm": norm, "step_seconds": seconds,
                   "tokens_per_second": rows.numel() / seconds, "peak_bytes": torch.cuda.max_memory_allocated()}
            print(json.dumps(row), file=out, flush=True)
            print(json.dumps(row), flush=True)
    if options.save:
        from safetensors.torch import save_file
        save_file({name: master.cpu() for name, _, master in pairs}, options.save)


if __name__ == "__main__":
    main()
