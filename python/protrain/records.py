"""Reads records from .jsonl, .json, .csv, .parquet and .txt files, one at a time, each with the place it came from."""

import csv
import glob
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import CONFIG, DATA, CommandError, one_line

SUFFIXES = (".jsonl", ".json", ".txt", ".csv", ".parquet")
_BOM = b"\xef\xbb\xbf"


@dataclass
class Record:
    where: str  # "data.jsonl:719": what messages start with
    value: dict | None  # None: could not be read, for the reason in `fault`
    fault: str = ""


def expand_inputs(patterns: list[str]) -> list[Path]:
    """Files named by paths and globs, each glob's in sorted order."""
    paths: list[Path] = []
    for pattern in patterns:
        names = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        if not names:
            raise CommandError(DATA, f"{pattern}: no such file")
        for name in names:
            path = Path(name)
            if path.is_dir():
                raise CommandError(DATA, f"{name}: a folder; give files or a glob such as {name.rstrip('/')}/*.jsonl")
            if path.suffix.lower() not in SUFFIXES and path.suffix.lower() != ".ptk":
                raise CommandError(CONFIG, f"{name}: unknown kind of file; known are {', '.join(SUFFIXES)}")
            paths.append(path)
    return paths


def read_records(path: Path) -> Iterator[Record]:
    """Faults of a single record come as a Record without value; CommandError when the file cannot be read on."""
    suffix = path.suffix.lower()
    try:
        if path.stat().st_size == 0:
            raise CommandError(DATA, f"{path}: the file is empty")
        if suffix == ".txt":
            yield _read_text(path)
        elif suffix == ".csv":
            yield from _read_csv(path)
        elif suffix == ".parquet":
            yield from _read_parquet(path)
        elif suffix == ".json" and _starts_array(path):
            yield from _read_array(path)
        else:
            yield from _read_lines(path)
    except OSError as error:
        raise CommandError(DATA, f"{path}: cannot be read: {error.strerror or error}") from error


def _read_text(path: Path) -> Record:
    try:
        text = path.read_bytes().removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        return Record(str(path), None, f"not UTF-8 (byte {error.start})")
    if not text.strip():
        raise CommandError(DATA, f"{path}: the file is empty but for white space")
    return Record(str(path), {"text": text.replace("\r\n", "\n")})


def _reject_constant(name: str):
    raise ValueError(f"{name} is not JSON")


def _parse_object(text: str) -> tuple[dict | None, str]:
    try:
        value = json.loads(text, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        return None, f"not JSON ({error.msg} at column {error.colno})"
    except (ValueError, RecursionError) as error:
        return None, f"not JSON ({one_line(error)})"
    if not isinstance(value, dict):
        return None, f"a record must be a JSON object, not {_json_kind(value)}"
    return value, ""


def _json_kind(value) -> str:
    kinds = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number", dict: "an object"}
    return kinds.get(type(value), "null")


def _read_lines(path: Path) -> Iterator[Record]:
    found = False
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(_BOM)
            if not line.strip():
                continue  # blank lines, above all at the end, are no records
            found = True
            where = f"{path}:{number}"
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                yield Record(where, None, f"not UTF-8 (byte {error.start} of the line)")
                continue
            value, fault = _parse_object(text)
            if fault and not line.endswith(b"\n"):
                fault += "; the file ends in the middle of this line: was it cut off?"
            yield Record(where, value, fault)
    if not found:
        raise CommandError(DATA, f"{path}: the file holds no record")


def _starts_array(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4096).removeprefix(_BOM).lstrip()[:1] == b"["


def _read_array(path: Path) -> Iterator[Record]:
    """The file's text is held in memory, its objects are not. A syntax error ends it: what follows has no known start."""
    try:
        text = path.read_bytes().removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(DATA, f"{path}: not UTF-8 (byte {error.start})") from error
    decoder = json.JSONDecoder(parse_constant=_reject_constant)
    line, counted = 1, 0  # line number at offset `counted`

    def skip_blanks(at: int) -> int:
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        return at

    def where(at: int) -> str:
        nonlocal line, counted
        line += text.count("\n", counted, at)
        counted = at
        return f"{path}:{line}"

    at = skip_blanks(skip_blanks(0) + 1)
    if text[at : at + 1] == "]":
        raise CommandError(DATA, f"{path}: the array holds no record")
    while True:
        place = where(at)
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            cut = " (was the file cut off?)" if error.pos >= len(text.rstrip()) - 1 else ""
            raise CommandError(DATA, f"{where(max(error.pos, counted))}: not JSON ({error.msg}){cut}") from error
        except (ValueError, RecursionError) as error:
            raise CommandError(DATA, f"{place}: not JSON ({one_line(error)})") from error
        if isinstance(value, dict):
            yield Record(place, value)
        else:
            yield Record(place, None, f"a record must be a JSON object, not {_json_kind(value)}")
        at = skip_blanks(at)
        mark = text[at : at + 1]
        if mark == "]":
            break
        if mark != ",":
            cut = " (was the file cut off?)" if mark == "" else ""
            raise CommandError(DATA, f"{where(at)}: not JSON (expected ',' or ']'){cut}")
        at = skip_blanks(at + 1)
    if skip_blanks(at + 1) != len(text):
        raise CommandError(DATA, f"{where(at)}: not JSON (text after the array's end)")


def _read_csv(path: Path) -> Iterator[Record]:
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        found = False
        while True:
            line = reader.line_num + 1
            try:
                row = next(reader)
            except StopIteration:
                break
            except (csv.Error, UnicodeDecodeError) as error:
                raise CommandError(DATA, f"{path}:{line}: not CSV ({one_line(error)})") from error
            found = True
            where = f"{path}:{reader.line_num}"
            names = reader.fieldnames or []
            fields = sum(value is not None for key, value in row.items() if key is not None)
            if None in row or fields != len(names):
                extra = len(row.get(None) or [])
                yield Record(where, None, f"{fields + extra} fields, but the header has {len(names)}")
                continue
            yield from [_parse_cells(where, row)]
        if not found:
            raise CommandError(DATA, f"{path}: the file holds no record")


def _parse_cells(where: str, row: dict) -> Record:
    """Lists in cells (messages, input_ids, ...) are written as JSON."""
    value = dict(row)
    for key in ("messages", "conversations", "history", "input_ids", "labels", "attention_mask"):
        cell = value.get(key)
        if isinstance(cell, str) and cell.strip():
            try:
                value[key] = json.loads(cell)
            except ValueError as error:
                return Record(where, None, f"column {key} is not JSON ({one_line(error)})")
        elif cell == "":
            value.pop(key)
    return Record(where, value)


def _read_parquet(path: Path) -> Iterator[Record]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        row = 0
        for batch in file.iter_batches(batch_size=256):
            for value in batch.to_pylist():
                row += 1
                yield Record(f"{path}: row {row}", {key: cell for key, cell in value.items() if cell is not None})
    except pyarrow.ArrowException as error:
        raise CommandError(DATA, f"{path}: not a parquet file that can be read ({one_line(error)})") from error
    if row == 0:
        raise CommandError(DATA, f"{path}: the file holds no record")
