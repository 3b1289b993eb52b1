#!/usr/bin/env bash
# configure.sh PRESET...: CMake presets with this machine's paths; the compiler cache lives outside the clone.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
venv=$("$top/tools/setup.sh" --print)
torch=$("$venv/bin/python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')
extra=()
if [ -s "$venv/nvcc" ]; then extra+=("-DCMAKE_CUDA_COMPILER=$(cat "$venv/nvcc")"); fi
for preset in "$@"; do
  mkdir -p "$top/build"
  log=$top/build/configure-$preset.log
  (cd "$top" && cmake --preset "$preset" -DPROTRAIN_TORCH="$torch" -DPROTRAIN_PYTHON="$venv/bin/python" "${extra[@]}") \
    > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
done
