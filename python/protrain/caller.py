"""`protrain train` as the caller of `prepare`: messages then name its keys, and the preparation ends when it does."""

import contextlib
import os
import select
import signal
import threading
import time

CALLER = "PROTRAIN_CALLER"  # process id of the `protrain train` that waits for this process
KEY = "PROTRAIN_KEY"  # "train_file" or "validation_file": whose files it prepares
_KEYS = {
    "--append-bos": "append_bos",
    "--no-eos": "add_eos: false",
    "--skip-bad": "skip_bad: true",
    "--tokenizer": "tokenizer_name",
}
_POLL_SECONDS = 0.5
_LAST_SECONDS = 20  # for cleaning up; a call into a library may not return before


class Terminated(BaseException):
    """SIGTERM, or the caller's end. No library's `except Exception` stops it."""


def named(option: str) -> str:
    """How the user spells this option: as a word of this command, or as a key of the training configuration."""
    return _KEYS.get(option, option) if CALLER in os.environ else option


def nothing_left(files: str) -> str:
    key = os.environ.get(KEY, "") if CALLER in os.environ else ""
    purpose = "evaluate with" if key == "validation_file" else "train on"
    return f"{key}{key and ': '}{files}: no sample is left to {purpose}"


def _raise(*_) -> None:
    raise Terminated


def _wait_for_end(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # a kernel without it
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(pid, 0)
                time.sleep(_POLL_SECONDS)
        return
    select.select([process], [], [])


def _end_with(pid: int) -> None:
    _wait_for_end(pid)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_LAST_SECONDS)
    os._exit(128 + signal.SIGTERM)


def end_cleanly() -> None:
    """SIGTERM becomes Terminated, and so does the end of the caller, by whatever signal. For a process's start."""
    signal.signal(signal.SIGTERM, _raise)
    caller = os.environ.get(CALLER, "")
    if caller.isdecimal():
        threading.Thread(target=_end_with, args=(int(caller),), daemon=True).start()
