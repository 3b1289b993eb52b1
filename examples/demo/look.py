"""Shows what the demo reached: loss on held-out text before and after, and a prompt continued by the exported model."""
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def show_memory(out, rows):
    """How small the device was beside the model's state, and that the run kept to its plan."""
    memory = json.loads((out / "plan.json").read_text())["memory"]
    state, planned, limit = memory["state_bytes"], memory["device"]["planned_bytes"], memory["device"]["limit_bytes"]
    used = rows[-1]["arena_high_water_bytes"]
    mib = 1 << 20
    print(f"trained {state / mib:.0f} MiB of weights, gradients and moments on a device of {limit / mib:.0f} MiB: "
          f"{planned / mib:.1f} MiB planned ({planned / state:.0%}), {used / mib:.1f} MiB used")
    if planned >= state / 2 or used != planned:
        sys.exit("the device held half of the model's state, or the plan was not kept")


def main():
    out = pathlib.Path(sys.argv[1])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    show_memory(out, [row for row in rows if row["kind"] == "train"])
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
