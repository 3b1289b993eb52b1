"""What ends a command: one line for the user and an exit code (the program's own codes, see src/base/error.h)."""

CONFIG = 2
DATA = 4
FILES = 5  # model and tokenizer files
INTERRUPTED = 130
TERMINATED = 143


class CommandError(Exception):
    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


class BadRecord(Exception):
    """One record that cannot be used; --skip-bad skips and counts these."""


def one_line(error: BaseException) -> str:
    """The first line of what an exception of a library says, or its type."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
