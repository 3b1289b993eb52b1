#!/bin/sh
# Builds and runs every *_fuzz.cpp of this folder: libFuzzer with ASan and UBSan, each for SECONDS or 10^6 runs, whichever
# comes first. Any crash, sanitizer report or hang fails. Needs clang (CLANG=clang++-19).
#   run.sh [SECONDS] [--only NAME]         fuzz (60 s by default)
#   run.sh [SECONDS] --mutants [--only NAME]   the targets are worth something: with each of the reader's checks left out in
#                                          turn (PROTRAIN_FUZZ_DROP_CHECK=1..n) the fuzzer must find it
# A target's first lines say what it is made of: `// sources: FILES`, `// libraries: FLAGS`, `// checks: N`.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
clang=${CLANG:-clang++-19}
build=${FUZZ_BUILD:-$root/build/fuzz}
seconds=60
only=
mutants=no
while [ $# -gt 0 ]; do
  case $1 in
    [0-9]*) seconds=$1 ;;
    --only) only=$2; shift ;;
    --mutants) mutants=yes ;;
    *) echo "usage: run.sh [SECONDS] [--only NAME] [--mutants]" >&2; exit 2 ;;
  esac
  shift
done

field() { sed -n "s|^// $2: *||p" "$1" | head -n 1; }

# compile TARGET.cpp OUT DROPPED
compile() {
  sources=
  for source in $(field "$1" sources); do sources="$sources $root/$source"; done
  # shellcheck disable=SC2046,SC2086
  "$clang" -std=c++20 -w -O1 -g1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
    -DPROTRAIN_FUZZ_DROP_CHECK="$3" -I"$root/src" -I"$here" "$1" $sources -o "$2" $(field "$1" libraries)
}

# fuzz PROGRAM NAME SECONDS EXTRA...; new inputs go to a scratch corpus, the committed one is only read
fuzz() {
  program=$1; name=$2; limit=$3
  shift 3
  rm -rf "$build/work-$name"
  mkdir -p "$build/work-$name" "$here/corpus/$name"
  dictionary=
  [ -f "$here/corpus/$name.dict" ] && dictionary="-dict=$here/corpus/$name.dict"
  # shellcheck disable=SC2086
  timeout $((limit + 60)) "$program" -runs=1000000 -max_total_time="$limit" -timeout=10 -rss_limit_mb=2048 -seed=1 \
    -artifact_prefix="$build/$name-" $dictionary "$@" "$build/work-$name" "$here/corpus/$name" \
    >"$build/$name.log" 2>&1
}

mkdir -p "$build"
failed=0
for target in "$here"/*_fuzz.cpp; do
  name=$(basename "$target" _fuzz.cpp)
  if [ -n "$only" ] && [ "$only" != "$name" ]; then continue; fi
  if [ "$mutants" = no ]; then
    compile "$target" "$build/$name" 0
    if fuzz "$build/$name" "$name" "$seconds"; then
      echo "fuzz $name: nothing found ($(grep -E '^#?[0-9]+.*DONE|^Done' "$build/$name.log" | tail -n 1))"
    else
      echo "fuzz $name: FAILED, see $build/$name.log"
      tail -n 40 "$build/$name.log"
      failed=1
    fi
    continue
  fi
  checks=$(field "$target" checks)
  check=1
  while [ "$check" -le "${checks:-0}" ]; do
    compile "$target" "$build/$name-without-$check" "$check"
    if fuzz "$build/$name-without-$check" "$name" "$seconds"; then
      echo "fuzz $name without check $check: NOT FOUND"
      failed=1
    else
      echo "fuzz $name without check $check: found"
    fi
    check=$((check + 1))
  done
done
exit $failed
