import os
import sys
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from chat_tokenizers import CHATML, GENERATION, LLAMA3, MISTRAL, PHI, QWEN3, make_tokenizer  # noqa: E402


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("tokenizers")
    return {
        "chatml": make_tokenizer(base / "chatml", CHATML),
        "llama3": make_tokenizer(base / "llama3", LLAMA3, bos="<|bos|>", eos="<|eot|>"),
        "mistral": make_tokenizer(base / "mistral", MISTRAL, bos="<|bos|>", eos="</s>"),
        "phi": make_tokenizer(base / "phi", PHI, eos="<|endoftext|>"),
        "qwen3": make_tokenizer(base / "qwen3", QWEN3),
        "generation": make_tokenizer(base / "generation", GENERATION),
        "plain": make_tokenizer(base / "plain", eos="</s>"),
    }


@pytest.fixture
def prepare(capsys):
    """Runs `prepare` in this process: (exit code, stdout, stderr)."""
    from protrain.prepare import main

    def run(*args) -> tuple[int, str, str]:
        try:
            code = main([str(arg) for arg in args])
        except SystemExit as exit:  # argparse
            code = exit.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
