#!/bin/sh
# Builds and runs every *_fuzz.cpp of this folder: libFuzzer with ASan and UBSan, each for SECONDS or 10^6 runs, whichever
# comes first. Any crash, sanitizer report or hang fails. Needs clang (CLANG=clang++-19).
#   run.sh [SECONDS] [--only NAME]         fuzz (60 s by default)
#   run.sh [SECONDS] --mutants [--only NAME]   the targets are worth something: with each of the reader's checks left out in
#                                          turn (PROTRAIN_FUZZ_DROP_CHECK=1..n, or a mutant) the fuzzer must find it
# A target's first lines say what it is made of: `// sources: FILES`, `// libraries: FLAGS`, `// checks: N`, and any number
# of `// mutant: FILE SED-COMMAND`, each of which takes one check out of a copy of the source.
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

mutants_of() { sed -n "s|^// mutant: *||p" "$1"; }

field() { sed -n "s|^// $2: *||p" "$1" | head -n 1; }

# compile TARGET.cpp OUT DROPPED [FILE CHANGED-FILE]
compile() {
  sources=
  for one in $(field "$1" sources); do
    if [ "$one" = "${4:-}" ]; then sources="$sources $5"; else sources="$sources $root/$one"; fi
  done
  # shellcheck disable=SC2046,SC2086
  "$clang" -std=c++20 -w -O1 -g1 -D_GLIBCXX_ASSERTIONS -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
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
  number=0
  mutants_of "$target" >"$build/$name.mutants"
  while read -r source command; do
    number=$((number + 1))
    changed=$build/$name-mutant-$number.cpp
    sed -E "$command" "$root/$source" >"$changed"
    if [ "$(diff "$root/$source" "$changed" | grep -c '^>')" != 1 ]; then
      echo "fuzz $name, mutant $number: $command does not change one line of $source"
      failed=1
      continue
    fi
    compile "$target" "$build/$name-mutant-$number" 0 "$source" "$changed"
    if fuzz "$build/$name-mutant-$number" "$name" "$seconds" </dev/null; then
      echo "fuzz $name, $source with $command: NOT FOUND"
      failed=1
    else
      echo "fuzz $name, $source with $command: found"
    fi
  done <"$build/$name.mutants"
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
