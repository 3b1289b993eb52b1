"""`protrain prepare`: turns text, alpaca, sharegpt, chat and tokenised files into one token file with loss masks.

Loss is taken on every token of a text, on the answers and their end tokens of a conversation, and where labels are not -100
of tokenised data. Exit codes: 2 arguments, 4 data, 5 tokenizer files.
"""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .caller import Terminated, end_cleanly, named, nothing_left
from .errors import CONFIG, DATA, FILES, INTERRUPTED, TERMINATED, BadRecord, CommandError
from .forms import FORMS, detect_form, messages_of, text_of, tokens_of
from .records import Record, expand_inputs, read_records
from .show import show_sample, show_token_file
from .token_file import TokenFileWriter, is_token_file
from .tokenizer import Rendered, Tokenizer

# Records tokenised in one call (in parallel inside the tokenizers library): whichever is reached first.
_BATCH_RECORDS = 512
_BATCH_CHARACTERS = 1 << 21


@dataclass
class Sample:
    where: str
    ids: np.ndarray
    supervised: np.ndarray


@dataclass
class Counts:
    dropped: int = 0
    first_dropped: str = ""
    skipped: int = 0
    first_skipped: str = ""


class Preparation:
    """Streams samples out of input files. Counts what it leaves out."""

    def __init__(self, args: argparse.Namespace, tokenizer: Tokenizer | None):
        self.counts = Counts()
        self.form = args.form
        self.vocabulary = args.vocabulary or (tokenizer.vocabulary if tokenizer else 0)  # 0: not known
        self._args = args
        self._tokenizer = tokenizer
        self._records = 0
        self._batch: list[tuple[str, str | Rendered]] = []
        self._batch_characters = 0

    def samples(self, paths: list[Path]) -> Iterator[Sample]:
        for path in paths:
            form = "text" if path.suffix.lower() == ".txt" else self._args.form
            for record in read_records(path):
                if self._args.max_samples and self._records == self._args.max_samples:
                    break
                self._records += 1
                try:
                    if record.value is None:
                        raise BadRecord(record.fault)
                    if form == "auto":
                        form = detect_form(record.value)
                    yield from self._take(record, form)
                except BadRecord as fault:
                    self._skip(record.where, fault)
            if form != "auto":
                self.form = form
        yield from self._flush()

    def _skip(self, where: str, fault: BadRecord | str) -> None:
        message = f"{where}: {fault}"
        if not self._args.skip_bad:
            raise CommandError(DATA, f"{message}; use {named('--skip-bad')} to skip and count bad records")
        self.counts.skipped += 1
        self.counts.first_skipped = self.counts.first_skipped or message

    def _take(self, record: Record, form: str) -> Iterator[Sample]:
        if form == "tokenised":
            tokens = tokens_of(record.value, self.vocabulary, everything=self._args.train_on_prompt)
            yield from self._flush()  # keeps the order of samples that of records
            yield from self._keep(record.where, np.asarray(tokens.ids), np.asarray(tokens.supervised, bool))
            return
        if self._tokenizer is None:
            raise CommandError(CONFIG, f"{record.where}: records of form {form} need {named('--tokenizer')}")
        if form == "text":
            item: str | Rendered = text_of(record.value)
            size = len(item)
        else:
            item = self._tokenizer.render(
                messages_of(record.value, form),
                everything=self._args.train_on_prompt,
                last_only=self._args.mask_history,
            )
            size = len(item.text)
        self._batch.append((record.where, item))
        self._batch_characters += size
        if len(self._batch) >= _BATCH_RECORDS or self._batch_characters >= _BATCH_CHARACTERS:
            yield from self._flush()

    def _flush(self) -> Iterator[Sample]:
        if not self._batch:
            return
        batch, self._batch, self._batch_characters = self._batch, [], 0
        texts = [item for _, item in batch if isinstance(item, str)]
        chats = [item for _, item in batch if isinstance(item, Rendered)]
        text_ids = iter(self._tokenizer.encode_texts(texts) if texts else [])
        chat_ids = iter(self._tokenizer.encode_rendered(chats) if chats else [])
        for where, item in batch:
            if isinstance(item, str):
                ids = next(text_ids)
                yield from self._keep(where, ids, np.ones(len(ids), bool))
            else:
                yield from self._keep(where, *next(chat_ids))

    def _keep(self, where: str, ids: np.ndarray, supervised: np.ndarray) -> Iterator[Sample]:
        if self.vocabulary and len(ids) and int(ids.max()) >= self.vocabulary:
            self._skip(where, self._beyond_vocabulary(ids))
        elif supervised[1:].any():  # the first token is never a target
            yield Sample(where, ids, supervised)
        else:
            self.counts.dropped += 1
            self.counts.first_dropped = self.counts.first_dropped or where

    def _beyond_vocabulary(self, ids: np.ndarray) -> str:
        position = int(np.argmax(ids >= self.vocabulary))
        token = int(ids[position])
        shown = f" ({self._tokenizer.decode([token])!r})" if self._tokenizer else ""
        return f"token {position}{shown} has id {token}, but the model's vocabulary has {self.vocabulary}"


def _describe_left_out(counts: Counts) -> str:
    text = ""
    if counts.dropped:
        text += f"; dropped {counts.dropped} without a supervised token (first: {counts.first_dropped})"
    if counts.skipped:
        text += f"; skipped {counts.skipped} bad records (first: {counts.first_skipped})"
    return text


def _write(args: argparse.Namespace, paths: list[Path], tokenizer: Tokenizer | None) -> None:
    preparation = Preparation(args, tokenizer)
    with TokenFileWriter(args.output, preparation.vocabulary) as writer:
        for sample in preparation.samples(paths):
            writer.add(sample.ids, sample.supervised)
        left_out = _describe_left_out(preparation.counts)
        if writer.samples == 0:
            names = ", ".join(map(str, paths[:3])) + (", ..." if len(paths) > 3 else "")
            raise CommandError(DATA, nothing_left(names) + left_out)
        writer.finish(
            {
                "sources": [{"name": str(path), "bytes": path.stat().st_size} for path in paths],
                "tokenizer": str(args.tokenizer) if args.tokenizer else None,
                "form": preparation.form,
                "train_on_prompt": args.train_on_prompt,
                "mask_history": args.mask_history,
                "eos": not args.no_eos,
                "bos": args.append_bos,
                "dropped": preparation.counts.dropped,
                "skipped": preparation.counts.skipped,
            }
        )
    print(
        f"{args.output}: {writer.samples} samples, {writer.tokens} tokens, {writer.supervised} supervised, "
        f"longest {writer.longest}{left_out}"
    )


def _hyphenated(word: str) -> str:
    """--max_samples is --max-samples, as for `protrain train`."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _with_plain_names(words: list[str]) -> list[str]:
    """Words behind "--" are inputs, whatever they begin with."""
    end = words.index("--") if "--" in words else len(words)
    options = words[: end - 1] if end < len(words) and words[end - 1 : end] == ["--input"] else words[:end]
    return [_hyphenated(word) for word in options] + [f"--input={name}" for name in words[end + 1 :]]


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="protrain prepare", description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help="local model folder with a tokenizer")
    parser.add_argument("--input", nargs="+", action="extend", required=True, metavar="FILE", help="files or globs; .ptk with --show")
    parser.add_argument("--output", type=Path, metavar="OUT.ptk")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT.ptk whatever it is, not only a token file")
    parser.add_argument("--form", choices=("auto", *FORMS), default="auto", help="auto: from the keys of each file")
    parser.add_argument("--vocabulary", type=int, default=0, metavar="N", help="of the model: ids are below it")
    parser.add_argument("--max-samples", type=int, metavar="N", default=0, help="read N records at most; 0 = all")
    parser.add_argument(
        "--train-on-prompt", "--train-on-inputs", action="store_true", help="take the loss on every token"
    )
    parser.add_argument("--mask-history", action="store_true", help="take it on the last answer only")
    parser.add_argument("--no-eos", action="store_true", help="do not end texts with the end token")
    parser.add_argument("--append-bos", choices=("auto", "yes", "no"), default="auto", help="start token before texts")
    parser.add_argument("--skip-bad", action="store_true", help="skip and count bad records")
    parser.add_argument("--show", type=int, metavar="N", help="print N samples: + is supervised, - is not")
    words = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(_with_plain_names(words))
    if args.output is None and args.show is None:
        parser.error("one of --output and --show is needed")
    for name, least in (("vocabulary", 0), ("max_samples", 0), ("show", 1)):
        if getattr(args, name) is not None and getattr(args, name) < least:
            parser.error(f"--{name.replace('_', '-')}: {getattr(args, name)}; at least {least}")
    return args


def _holds_something_else(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0 and not is_token_file(path)


def run(args: argparse.Namespace) -> None:
    paths = expand_inputs(args.input)
    if args.output is not None:
        if args.output.is_dir():
            raise CommandError(CONFIG, f"--output: {args.output} is a folder; it must be a file")
        if args.output.exists() and any(args.output.samefile(path) for path in paths if path.exists()):
            raise CommandError(CONFIG, f"--output: {args.output} is an input too; give another file")
        if not args.overwrite and _holds_something_else(args.output):
            raise CommandError(
                CONFIG, f"--output: {args.output} is there and no token file; give another name, or --overwrite"
            )
    tokenizer = None
    if args.tokenizer is not None:
        tokenizer = Tokenizer(args.tokenizer, bos=args.append_bos, eos=not args.no_eos)
        if not tokenizer.has_template and args.form in ("alpaca", "sharegpt", "messages"):
            print(
                f"protrain prepare: {args.tokenizer} has no chat_template; using '### Instruction:' / '### Response:'",
                file=sys.stderr,
            )
    prepared = [path for path in paths if path.suffix.lower() == ".ptk"]
    if prepared:
        if args.output is not None or len(prepared) != len(paths):
            raise CommandError(CONFIG, f"{prepared[0]}: is prepared already; --show alone reads .ptk files")
        for path in prepared:
            show_token_file(path, args.show, tokenizer)
    elif args.output is not None:
        _write(args, paths, tokenizer)
        if args.show is not None:
            show_token_file(args.output, args.show, tokenizer)
    else:
        preparation = Preparation(args, tokenizer)
        for number, sample in enumerate(itertools.islice(preparation.samples(paths), args.show)):
            show_sample(number, sample.where, sample.ids, sample.supervised, tokenizer)


def main(argv: list[str] | None = None) -> int:
    args = _parse(argv)
    try:
        run(args)
        sys.stdout.flush()
    except CommandError as error:
        print(f"protrain prepare: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        name = error.filename or "standard output"  # files are named where they are read and written
        print(f"protrain prepare: {name}: {error.strerror or error}", file=sys.stderr)
        return FILES if args.tokenizer and str(error.filename or "").startswith(str(args.tokenizer)) else DATA
    except KeyboardInterrupt:
        print("protrain prepare: interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    except Terminated:
        with contextlib.suppress(OSError):  # nobody may be left to read it
            print("protrain prepare: terminated; nothing was written", file=sys.stderr)
        return TERMINATED
    return 0


if __name__ == "__main__":
    end_cleanly()
    sys.exit(main())
