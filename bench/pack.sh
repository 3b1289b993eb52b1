#!/usr/bin/env bash
# pack.sh FOLDER PROGRAM...: stripped programs of build/release/bin with the libraries that another machine may lack, for a run
# beside PyTorch's own libraries. There: source FOLDER/env.sh, then FOLDER/bin/PROGRAM.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
to=$1; shift
rm -rf "$to"; mkdir -p "$to/bin" "$to/lib"
for program in "$@"; do
  strip -o "$to/bin/$program" "$top/build/release/bin/$program"
  ldd "$top/build/release/bin/$program" | awk '$3 ~ /lib(fmt|yaml-cpp|xxhash|gtest|gmock|benchmark|CLI)/ {print $3}' |
    xargs -r -I{} cp -Ln {} "$to/lib/"
done
cat > "$to/env.sh" <<'E2'
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
torch=$(python3 -c 'import torch, os; print(os.path.dirname(torch.__file__))')
export LD_LIBRARY_PATH=$here/lib:$torch/lib:$(dirname "$torch")/nvidia/cu13/lib:/usr/local/cuda/lib64
export PATH=$here/bin:$PATH
E2
du -sh "$to"
