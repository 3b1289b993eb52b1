"""Shows what the demo reached: loss on held-out text before and after, and a prompt continued by the exported model."""
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    out = pathlib.Path(sys.argv[1])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [row["eval_loss"] for row in rows if "eval_loss" in row]
    before, after = losses[0], losses[-1]
    print(f"held-out loss {before:.4f} -> {after:.4f}, {before - after:.4f} nats lower")
    tokenizer = AutoTokenizer.from_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out)
    ids = tokenizer("Enter ROMEO and a Servant.\n\nROMEO.", return_tensors="pt").input_ids
    with torch.no_grad():
        text = tokenizer.decode(model.generate(ids, max_new_tokens=40, do_sample=False)[0])
    print("transformers continues:\n" + text)
    if before - after < 0.05:
        sys.exit("the held-out loss fell by less than 0.05 nats")


if __name__ == "__main__":
    main()
