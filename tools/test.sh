#!/usr/bin/env bash
# test.sh check|test|full: the three loops. Stages run in order, each under a time limit; the first failure ends the run.
#   check  what changed since main's last commit: format, layers, build, the changed layers' unit tests (3 minutes)
#   test   what CI runs, on a clean checkout with cold caches and 2 cores 40 minutes at most
#   full   test and the whole matrices (the unit stage alone takes an hour; build/release/Testing keeps its log)
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
mode=${1:-test}
"$top/tools/setup.sh" > /dev/null
venv=$("$top/tools/setup.sh" --print)
export OMP_WAIT_POLICY=passive PYTHONPATH=$top/python HF_HUB_OFFLINE=1
export PROTRAIN_TEST_FULL=$([ "$mode" = full ] && echo 1 || echo 0)
# The whole matrices are for the release build; sanitizers see what `test` runs.
unit_minutes=8 test_seconds=300
if [ "$mode" = full ]; then unit_minutes=90 test_seconds=5400; fi
cores=$(nproc)
passed=0

# stage NAME MINUTES COMMAND...
stage() {
  local name=$1 minutes=$2 began=$SECONDS; shift 2
  echo "== $name"
  local status=0
  timeout --foreground -k 10 "${minutes}m" "$@" || status=$?
  if [ $status -ne 0 ]; then
    [ $status -eq 124 ] && echo "== $name: over its limit of $minutes minutes"
    echo "== $name: FAILED after $((SECONDS - began)) s"
    echo "$passed passed, 1 failed"
    exit 1
  fi
  passed=$((passed + 1))
  echo "== $name: ok, $((SECONDS - began)) s"
}

sources() { git ls-files --cached --others --exclude-standard -- 'src/*' 'tests/*' 'bench/*' | grep -E '\.(h|cpp|cu)$'; }
changed() { { git diff --name-only HEAD; git ls-files --others --exclude-standard; } | sort -u; }

format() { sources | xargs clang-format-19 --dry-run -Werror; }
lint() {  # every plain file (tests in the full loop only): LibTorch and CUDA files are beyond clang-tidy
  tools/configure.sh lint
  grep -o '"file": "[^"]*"' build/lint/compile_commands.json | cut -d'"' -f4 | grep "^$top/src" |
    { if [ "$mode" = full ]; then cat; else grep -v '_test\.cpp$'; fi; } |
    xargs -r -P "$cores" -n 2 clang-tidy-19 -p build/lint --quiet --warnings-as-errors='*' 2>/dev/null
}
build() { tools/configure.sh "$1" && ninja -C "build/$1" | tail -n 3; }
units() { ctest --test-dir "build/$1" --output-on-failure --timeout "$test_seconds" -j "$2" "${@:3}"; }
export -f format lint build units sources changed
export top mode cores test_seconds

if [ "$mode" = check ]; then
  stage layers 1 python3 tools/check_layers.py
  stage format 1 bash -c format
  stage build 10 bash -c 'set -o pipefail; build release'
  layers=$(changed | grep -oE '^src/[a-z_]+' | cut -d/ -f2 | sort -u | paste -sd'|')
  if [ -n "$layers" ]; then stage unit 3 bash -c "units release $cores -R '^($layers)\$'"; fi
  exit 0
fi

stage layers 1 python3 tools/check_layers.py
stage format 2 bash -c format
stage build 25 bash -c 'set -o pipefail; build release'
stage unit $unit_minutes bash -c 'units release 1 --no-tests=error'
stage system 30 "$venv/bin/python" -m pytest -q -x --no-header -p no:cacheprovider tests
export PROTRAIN_TEST_FULL=0 test_seconds=300
stage asan 15 bash -c 'set -o pipefail; build asan && units asan "$cores" -E "^search$"'
stage tsan 15 bash -c 'set -o pipefail; build tsan && units tsan "$cores" -E "^search$"'
stage lint $([ "$mode" = full ] && echo 30 || echo 15) bash -c 'set -o pipefail; lint'
if [ -x tests/fuzz/run.sh ]; then
  stage fuzz 12 tests/fuzz/run.sh $([ "$mode" = full ] && echo 60 || echo 10)
fi
ccache -s 2>/dev/null | grep -E 'Hits|Misses' | head -n 2 || true
echo "$passed passed, 0 failed"
