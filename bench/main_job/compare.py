"""Compares runs of the same job: losses and norms step by step, and the per-tensor cosine of the weights' change.

compare.py INITIAL_DIR OURS_METRICS OURS_DIR FIRST.jsonl FIRST.safetensors SECOND.jsonl SECOND.safetensors OUT.json
FIRST and SECOND are two PyTorch runs with different attention back ends.
"""
import json
import pathlib
import sys

import torch
from safetensors import safe_open


def open_all(place):
    place = pathlib.Path(place)
    files = [place] if place.is_file() else sorted(place.glob("model*.safetensors"))
    where = {}
    for file in files:
        handle = safe_open(file, "pt", device="cuda")
        where.update({name: handle for name in handle.keys()})
    return where


def rows(path):
    found = [json.loads(line) for line in open(path)]
    return [row for row in found if "loss" in row and "eval_loss" not in row]


def main():
    initial, metrics, ours, first_log, first, second_log, second, out = sys.argv[1:]
    tensors = [open_all(place) for place in (initial, ours, first, second)]
    ours_against, torch_against = {}, {}
    cosine = torch.nn.functional.cosine_similarity
    for name in tensors[2]:
        start, a, b, c = (t[name].get_tensor(name).double().flatten() for t in tensors)
        a, b, c = a - start, b - start, c - start
        ours_against[name] = cosine(a, b, dim=0).item()
        torch_against[name] = cosine(b, c, dim=0).item()
    mine, theirs = rows(metrics), rows(first_log)
    fall = theirs[0]["loss"] - theirs[-1]["loss"]
    steps = [{"step": a["step"], "loss": a["loss"], "reference_loss": b["loss"],
              "loss_difference_of_fall": abs(a["loss"] - b["loss"]) / fall,
              "norm_difference": abs(a["grad_norm"] - b["grad_norm"]) / b["grad_norm"]} for a, b in zip(mine, theirs)]
    margin = {name: ours_against[name] - torch_against[name] for name in ours_against}
    worst = min(margin, key=margin.get)
    result = {"fall_nats": fall, "steps": steps,
              "worst_loss_difference_of_fall": max(s["loss_difference_of_fall"] for s in steps),
              "worst_norm_difference": max(s["norm_difference"] for s in steps),
              "worst_cosine_margin": margin[worst], "worst_cosine_tensor": worst,
              "lowest_cosine_ours": min(ours_against.values()), "lowest_cosine_torch": min(torch_against.values()),
              "cosine_ours": ours_against, "cosine_torch": torch_against}
    json.dump(result, open(out, "w"))
    print(json.dumps({k: v for k, v in result.items() if k not in ("steps", "cosine_ours", "cosine_torch")}, indent=1))


if __name__ == "__main__":
    main()
