#!/usr/bin/env bash
# Everything the build needs, set up once: system packages, the virtual environment of python/requirements.lock, and a CUDA
# compiler when there is a GPU but no nvcc. Prints nothing but progress; the last line of `setup.sh --print` is the
# environment's folder. Safe to run again and by two processes at once.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
cache=${PROTRAIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/protrain}
python=${PYTHON:-python3}

die() { echo "protrain setup: $*" >&2; exit 2; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$python is older than Python 3.11; set PYTHON"
key=$( (cat "$top/python/requirements.lock"; "$python" -c 'import sys; print(sys.version_info[:2])') | sha256sum | cut -c1-16)
venv=$cache/venv-$key

if [ "${1:-}" != "--print" ]; then
  missing=()
  if command -v dpkg-query >/dev/null; then
    for package in $(grep -v '^#' "$top/tools/system-packages.txt"); do
      dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok' || missing+=("$package")
    done
  else
    for tool in cmake ninja ccache clang-format-19 clang-tidy-19; do
      command -v $tool >/dev/null || missing+=("$tool")
    done
  fi
  if [ ${#missing[@]} -gt 0 ]; then
    install="apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ${missing[*]}"
    if ! command -v apt-get >/dev/null; then
      die "missing: ${missing[*]}; install them with your system's package manager"
    elif [ "$(id -u)" = 0 ]; then
      echo "protrain setup: installing ${missing[*]}" >&2
      sh -c "$install" >&2 || die "could not install: ${missing[*]}"
    elif sudo -n true 2>/dev/null; then
      echo "protrain setup: installing ${missing[*]} (sudo)" >&2
      sudo sh -c "$install" >&2 || die "could not install: ${missing[*]}"
    else
      die "missing system packages; run: sudo sh -c '$install'"
    fi
  fi

  mkdir -p "$cache"
  exec 9>"$cache/lock-$key"
  flock 9
  if [ ! -f "$venv/complete" ]; then
    echo "protrain setup: building $venv (about 5 GB, once)" >&2
    rm -rf "$venv"
    "$python" -m venv "$venv" >&2 || die "$python cannot make virtual environments (package python3-venv)"
    "$venv/bin/python" -m pip install --quiet --no-deps --disable-pip-version-check -r "$top/python/requirements.lock" >&2 ||
      die "pip could not install python/requirements.lock"
    touch "$venv/complete"
  fi
  # A GPU but no CUDA compiler: the compiler's wheels, beside the CUDA libraries that torch brought.
  have_nvcc() { command -v nvcc > /dev/null || [ -x /usr/local/cuda/bin/nvcc ]; }
  have_gpu() { command -v nvidia-smi > /dev/null && nvidia-smi -L > /dev/null 2>&1; }
  if [ ! -s "$venv/nvcc" ] && { [ "${PROTRAIN_NVCC_FROM_WHEELS:-}" = 1 ] || { have_gpu && ! have_nvcc; }; }; then
    echo "protrain setup: installing a CUDA compiler from wheels" >&2
    "$venv/bin/python" -m pip install --quiet --no-deps --disable-pip-version-check nvidia-cuda-nvcc==13.0.88 \
      nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-cccl==13.0.85 >&2 || die "no CUDA compiler to be had"
    nvcc=$(find "$venv" -path '*/cu13/bin/nvcc' | head -n 1)
    # What CMake looks for and the wheels leave out.
    toolkit=$(dirname "$(dirname "$nvcc")")
    ln -sfn libcudart.so.13 "$toolkit/lib/libcudart.so"
    [ -e "$toolkit/lib64" ] || ln -s lib "$toolkit/lib64"
    echo "$nvcc" > "$venv/nvcc"
  fi
fi
echo "$venv"
