"""`prepare` as a process: full disks, killed writers, a caller that dies."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from protrain.errors import CommandError
from protrain.token_file import TokenFileWriter

PYTHON = Path(__file__).resolve().parents[2] / "python"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PYTHON)}
WAIT_SECONDS = 60


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def wait_until(condition) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("limit", [64, 200, 5_000, 60_000, 131_000])  # the header, tokens in a buffer, tokens, bounds
def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path, limit):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "x.ptk"
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(CommandError) as caught, TokenFileWriter(path, 1000) as writer:
            for _ in range(10):
                writer.add([5] * 5000, [True] * 5000)
            for _ in range(4000):
                writer.add([5], [True])
            writer.finish({})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.code == 4
    assert str(caught.value) == f"{path}: cannot be written: File too large"
    assert names(tmp_path) == []


def test_the_command_says_which_file_found_the_disk_full(tmp_path, tokenizers):
    source = tmp_path / "data.txt"
    source.write_text("the quick brown fox\n" * 5000)
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "from protrain.prepare import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", program, "--tokenizer", tokenizers["chatml"], "--input", source]
    done = subprocess.run([*command, "--output", tmp_path / "x.ptk"], env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (4, f"protrain prepare: {tmp_path / 'x.ptk'}: cannot be written: File too large\n")
    assert names(tmp_path) == ["data.txt"]


@pytest.fixture
def slow(tmp_path, tokenizers):
    """The words of a preparation that takes a while, and its output's folder."""
    source = tmp_path / "data.jsonl"
    source.write_text('{"text": "%s"}\n' % ("the quick brown fox jumps over the lazy dog " * 200) * 20_000)
    folder = tmp_path / "cache"
    folder.mkdir()
    words = ["-m", "protrain.prepare", "--tokenizer", tokenizers["chatml"], "--input", source, "--output", folder / "a.ptk"]
    return [sys.executable, *map(str, words)], folder


def test_it_ends_and_cleans_up_when_its_caller_is_killed(slow):
    command, folder = slow
    program = (
        "import os, subprocess, sys, time;"
        "child = subprocess.Popen(sys.argv[1:], env={**os.environ, 'PROTRAIN_CALLER': str(os.getpid())});"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    caller = subprocess.Popen([sys.executable, "-c", program, *command], env=ENVIRONMENT, stdout=subprocess.PIPE)
    child = int(caller.stdout.readline())
    try:
        wait_until(lambda: names(folder))
        assert alive(child)
        caller.kill()
        caller.wait()
        wait_until(lambda: not alive(child))
        assert names(folder) == []
    finally:
        caller.kill()
        if alive(child):
            os.kill(child, signal.SIGKILL)


def test_sigterm_leaves_nothing_and_what_sigkill_leaves_goes_with_the_next_run(slow):
    command, folder = slow
    for end, left in ((signal.SIGTERM, 0), (signal.SIGKILL, 1)):
        child = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: names(folder))
        finally:
            child.send_signal(end)
        _, err = child.communicate(timeout=WAIT_SECONDS)
        assert len(names(folder)) == left
        if end == signal.SIGTERM:
            assert (child.returncode, err) == (143, "protrain prepare: terminated; nothing was written\n")
    (folder / ".notes.0123abcd.tmp").write_text("not ours")
    with TokenFileWriter(folder / "b.ptk", 10) as at_work:
        at_work.add([1, 2], [True, True])
        with TokenFileWriter(folder / "c.ptk", 10) as other:  # sweeps too, but not what is being written
            other.add([1, 2], [True, True])
            other.finish({})
        at_work.finish({})
    assert names(folder) == [".notes.0123abcd.tmp", "b.ptk", "c.ptk"]
