#!/usr/bin/env python3
"""Checks the sources against tools/layers.txt: includes point down, LibTorch only where it may be, no file too long."""
import pathlib
import re
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
LONGEST = 600  # lines
TORCH = re.compile(r'#include <(ATen|c10|torch)/')


def read_table():
    allowed, torch = {}, set()
    for line in (TOP / "tools/layers.txt").read_text().splitlines():
        match = re.match(r"([a-z_]+)(\*?):(.*)$", line)
        if match:
            allowed[match[1]] = set(match[3].split())
            if match[2]:
                torch.add(match[1])
    return allowed, torch


def main():
    allowed, torch = read_table()
    faults = []
    order = list(allowed)
    for layer, below in allowed.items():
        for other in sorted(below):
            if other not in allowed or order.index(other) >= order.index(layer):
                faults.append(f"tools/layers.txt: {layer} may not name {other}: not above it in the list")
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "src", "tests", "bench",
                             "python", "tools"], cwd=TOP, capture_output=True, text=True, check=True).stdout.split()
    for name in listed:
        path = TOP / name
        if path.suffix not in {".h", ".cpp", ".cu", ".py", ".sh"} or not path.exists():
            continue
        lines = path.read_text(errors="replace").splitlines()
        if len(lines) > LONGEST:
            faults.append(f"{name}: {len(lines)} lines, at most {LONGEST}")
        parts = pathlib.PurePath(name).parts
        if parts[0] != "src" or path.suffix not in {".h", ".cpp", ".cu"}:
            continue
        layer = parts[1]
        if layer not in allowed:
            faults.append(f"{name}: src/{layer} is not in tools/layers.txt")
            continue
        for number, line in enumerate(lines, 1):
            include = re.match(r'#include "([a-z_]+)/', line)
            if include and include[1] != layer and include[1] not in allowed[layer]:
                faults.append(f"{name}:{number}: {layer} may not include {include[1]}")
            if TORCH.match(line) and (layer not in torch or path.suffix == ".cu"):
                faults.append(f"{name}:{number}: LibTorch in {layer}" + (", a .cu file" if path.suffix == ".cu" else ""))
    print("\n".join(faults) if faults else f"layers: {len(listed)} files, no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
