#!/usr/bin/env bash
# The main job on one GPU: run.sh MODEL TOKENS.ptk OUT [reference]. MODEL is a folder beside this script. Writes random initial
# weights, trains 20 steps of 8 x 4096 tokens, and with `reference` does the same twice in PyTorch and compares.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=$1 tokens=$2 out=$3 with=${4:-}
rows=${ROWS:-8} micro=${MICRO:-8} steps=${STEPS:-20}
work=$(mktemp -d "${WORK:-/tmp}/main-job-XXXX")
mkdir -p "$out"
nvidia-smi --query-gpu=name,power.limit,clocks.max.sm --format=csv,noheader > "$out/$model.machine.txt"
protrain init "$here/$model" "$work/initial" --seed 1 --dtype bfloat16
protrain train "$here/train.yaml" --model_name_or_path "$work/initial" --train_file "$tokens" --output_dir "$work/ours" \
  --learning_rate "${LR:-3.0e-6}" --per_device_train_batch_size "$micro" --gradient_accumulation_steps $((rows / micro)) --max_steps "$steps" \
  ${TRACE:+--trace_steps "$TRACE"} ${EXTRA:-} 2>&1 | tee "$out/$model.protrain.log"
cp "$work/ours/metrics.jsonl" "$out/$model.protrain.jsonl"
cp "$work"/ours/*trace*.json "$out/" 2> /dev/null || true
if [ "$with" = reference ]; then
  for attention in cudnn flash; do
    python3 "$here/reference.py" "$work/initial" "$tokens" "$out/$model.torch-$attention.jsonl" --attention $attention \
      --lr "${LR:-3.0e-6}" --rows "$rows" --micro "${REFERENCE_MICRO:-2}" --steps "$steps" --save "$work/$attention.safetensors" 2>&1 |
      tee "$out/$model.torch-$attention.log"
  done
  python3 "$here/compare.py" "$work/initial" "$out/$model.protrain.jsonl" "$work/ours" \
    "$out/$model.torch-cudnn.jsonl" "$work/cudnn.safetensors" "$out/$model.torch-flash.jsonl" "$work/flash.safetensors" \
    "$out/$model.compare.json"
fi
rm -rf "$work"
