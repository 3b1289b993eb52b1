#!/usr/bin/env bash
# All that is measured on one H200, by parts of at most ten minutes.
#   h200.sh pack FOLDER TOKENS.ptk   here: programs, cases and tests for a machine that has PyTorch and nothing of ours
#   FOLDER/h200.sh PART OUT          there: leaves OUT/PART.tgz. PROTRAIN_CACHE keeps profiles from one part to the next.
# Parts, in the order that measures least twice: plans-8b, plans-14b, plans-3b (bench/plans, a line a case in each .json), tests
# (tests/gpu and the Cuda* tests), offload (bench/offload and its 18B shape), profile (nothing cached, 4 and 8 rows).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

pack() {
  local top to
  top=$(cd "$here/.." && pwd) && to=$1
  bash "$here/pack.sh" "$to" protrain plan_runs ops_test optimizer_test device_test profile_test
  mkdir -p "$to/bench" "$to/t/tests" "$to/t/build/release/bin"
  cp -r "$here"/{offload,main_job,plans} "$to/bench/"
  cp "$here/results/offload_h200/18b.cases.json" "$to/bench/offload/"
  cp -r "$top"/tests/{gpu,train} "$to/t/tests/"
  cp -r "$top/python" "$to/t/"
  cp "$to/bin/protrain" "$to/t/build/release/bin/"
  cp "$here/h200.sh" "$to/"
  cp "$2" "$to/tokens.ptk"
  find "$to" -name __pycache__ -prune -exec rm -rf {} +
  du -sh "$to"
}

# CASES.json NAME...: those of them.
pick() {
  python3 -c 'import json, sys
cases = {case["name"]: case for case in json.load(open(sys.argv[1]))}
json.dump([cases[name] for name in sys.argv[2:]], sys.stdout, indent=1)' "$@"
}

# NAME MODEL CASES.json CASE...
plans() {
  local name=$1 model=$2 cases=$3
  shift 3
  pick "$cases" "$@" > "$out/$name.cases.json"
  plan_runs bench/main_job/train.yaml "$out/$name.cases.json" "$out/$name.json" --config_name "$model" --train_file tokens.ptk \
    --output_dir "$work/run" --recompute auto > "$out/$name.log" 2>&1 || echo "$name: code $?"
  python3 bench/plans/table.py "$out/$name.json"
}

tests() {
  local f=tests/gpu/test_cuda_plans.py n=0
  local bits=$f::test_plans_and_resume_change_no_bit same=$f::test_the_gpu_trains_what_the_cpu_trains
  local streamed=$f::test_streamed_swapped_and_offloaded_plans_change_no_bit
  side() {
    n=$((n + 1))
    (cd t && PYTHONPATH=$PWD/python python3 -m pytest -q --durations=0 -p no:cacheprovider --basetemp="$work/pytest$n" "$@"
     echo "code $?") > "$out/tests_gpu.$n.log" 2>&1 &
  }
  side "${bits}[True-False]" "${bits}[True-True]"
  side "${bits}[False-False]" "${bits}[False-True]"
  side "${streamed}[1.0-micro_batch]" "${streamed}[1.0-layer]"
  side "${streamed}[0.0-micro_batch]" "${streamed}[0.0-layer]"
  side "${same}[False]"
  side "${same}[True]"
  for program in ops optimizer device profile; do
    ("${program}_test" --gtest_filter='Cuda*-CudaTiming*'; echo "code $?") > "$out/$program.log" 2>&1 &
  done
  wait
  (profile_test --gtest_filter='CudaTiming*'; echo "code $?") > "$out/timing.log" 2>&1 || true  # alone: it is about time
  grep -h "passed\|failed\|^code\|PASSED\|FAILED" "$out"/*.log
}

profile() {
  for rows in 8 4; do
    (time PROTRAIN_CACHE="$work/nothing.$rows" protrain profile bench/main_job/train.yaml --config_name bench/plans/llama-2-7b \
      --train_file tokens.ptk --output_dir "$work/profile" --per_device_train_batch_size "$rows") 2>&1 |
      while IFS= read -r line; do echo "$(date +%T) $line"; done > "$out/llama-2-7b.$rows.log"
    grep real "$out/llama-2-7b.$rows.log"
  done
}

if [ "${1:-}" = pack ]; then
  pack "$2" "$3"
  exit
fi
part=$1 to=$2
work=$(mktemp -d) && out=$work/$part
mkdir -p "$out" "$to"
set +u && source "$here/env.sh" && set -u
export HF_HUB_OFFLINE=1 PROTRAIN_CACHE=${PROTRAIN_CACHE:-$work/cache}
cd "$here"
keep() {  # what there is, whatever ended the part
  if [ -d "$PROTRAIN_CACHE/profiles" ]; then cp -r "$PROTRAIN_CACHE/profiles" "$out/"; fi
  tar czf "$to/$part.tgz" -C "$work" "$part"
}
trap keep EXIT
trap 'exit 124' TERM
began=$SECONDS
case $part in
plans-3b)
  plans 3b bench/main_job/llama-3.2-3b bench/plans/llama-3.2-3b.json \
    3b-16x4-{24GiB-{auto,recompute,swap-some},48GiB-{auto,light,recompute},80GiB-{auto,light,keep},none-{auto,keep}} 3b-64x2-{24GiB,none}-auto 3b-1x1-24GiB-auto 3b-16x16-48GiB-auto ;;
plans-8b)
  plans 8b bench/main_job/llama-3-8b bench/plans/llama-3-8b.json \
    8b-8x4-{24GiB-{auto,recompute},48GiB-{auto,swap-some,recompute-cpu-layer},80GiB-{auto,swap-some,recompute},none-{auto,light}} ;;
plans-14b)
  plans 14b bench/offload/qwen2.5-14b bench/plans/qwen2.5-14b.json 14b-16x4-none-{auto,recompute} \
    14b-4x4-80GiB-{auto,recompute,swap-some} ;;
tests) tests ;;
offload)
  python3 bench/offload/run.py tokens.ptk "$out" 3b-24-best 3b-keep 3b-recompute 14b | cut -c1-400
  plans 18b bench/offload/llama-18b bench/offload/18b.cases.json 18b-2x2-layer ;;
profile) profile ;;
*) echo "no part $part" >&2; exit 2 ;;
esac
echo "$part: $((SECONDS - began)) s"
