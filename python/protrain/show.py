"""Prints samples with their loss mask: users check masking by reading them."""

import json
from pathlib import Path

import numpy as np

from .token_file import TokenFile

_RUN_CHARACTERS = 600  # of one run of tokens; the middle of a longer one is left out


def show_sample(number: int, where: str, ids: np.ndarray, supervised: np.ndarray, tokenizer) -> None:
    """A line for each run of tokens with equal mask: `+` is supervised, `-` is not."""
    targets = int(np.count_nonzero(supervised[1:]))
    print(f"sample {number}{f' ({where})' if where else ''}: {len(ids)} tokens, {targets} supervised")
    edges = [0, *(np.flatnonzero(np.diff(supervised.astype(np.int8))) + 1).tolist(), len(ids)]
    for begin, end in zip(edges, edges[1:], strict=False):
        if begin == end:
            continue
        run = tokenizer.decode(ids[begin:end]) if tokenizer else " ".join(map(str, ids[begin:end]))
        if len(run) > _RUN_CHARACTERS:
            half = _RUN_CHARACTERS // 2
            run = f"{run[:half]} [... {len(run) - 2 * half} characters ...] {run[-half:]}"
        print(f"  {'+' if supervised[begin] else '-'} {json.dumps(run, ensure_ascii=False)}")


def show_token_file(path: Path, most: int, tokenizer) -> None:
    file = TokenFile(path)
    for number in range(min(most, len(file))):
        show_sample(number, str(path), *file.sample(number), tokenizer)
