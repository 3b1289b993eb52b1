#!/usr/bin/env bash
# The demo: a real model, real text, real tokenizer; trained under a device limit below half of the model's state, evaluated
# before and after on the same held-out text, exported, loaded by transformers. About 6 minutes on 2 cores; with a GPU it trains longer. run.sh [OUTPUT_DIR]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
out=${1:-$top/examples/out/demo}
venv=$("$top/tools/setup.sh" --print)
cache=${PROTRAIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/protrain}
assets=$cache/demo-${venv##*-}
export PYTHONPATH=$top/python HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1

[ -f "$assets/smollm2-135m/config.json" ] || "$venv/bin/python" -m protrain.demo_model "$assets/smollm2-135m"
[ -f "$assets/text/validation.txt" ] || "$venv/bin/python" -m protrain.demo_text "$assets/text"
if nvidia-smi -L > /dev/null 2>&1; then
  validation=$assets/text/validation.txt
  # A limit would also cover the driver's own half gigabyte, so here the plan itself is given.
  longer=(--max_steps 200 --gradient_accumulation_steps 8 --logging_steps 10
    --plan '{"n_persist": 0, "place": {"embedding": "cpu", "head": "cpu"}, "activation": "recompute"}')
else
  validation=$assets/text/validation-20kB.txt  # about 6,000 tokens
  head -c 20000 "$assets/text/validation.txt" > "$validation"
  longer=(--bf16 false --device_memory_limit 1000MiB)  # weights, gradients and moments: 2053 MiB
fi
"$top/build/release/bin/protrain" train "$here/smollm2.yaml" --model_name_or_path "$assets/smollm2-135m" \
  --train_file "$assets/text/train.txt" --validation_file "$validation" --output_dir "$out" --overwrite_output_dir true \
  "${longer[@]}"
"$venv/bin/python" "$here/look.py" "$out"
