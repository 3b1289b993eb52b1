"""Writes and reads .ptk token files; the format is described in src/data/token_file.h."""

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import struct
import tempfile
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from .errors import CONFIG, DATA, CommandError

_MAGIC = b"PTKTOK1\0"
_VERSION = 1
_HEADER = struct.Struct("<8s2I4Q4QQQQ")  # magic ... file bytes, xxh64 of what is before it
_DIGEST_AT, _BODY_AT = _HEADER.size, _HEADER.size + 8  # the digest is one of all that follows it
_ALIGNMENT = 64
_MASK_BLOCK = 1 << 20  # tokens

_MASK64 = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK64


def _round(lane: int, word: int) -> int:
    return _rotate((lane + word * _P2) & _MASK64, 31) * _P1 & _MASK64


def xxh64(data: bytes, seed: int = 0) -> int:
    """The XXH64 hash by its specification; for headers of about a hundred bytes."""
    at, end = 0, len(data)
    if end >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK64, (seed + _P2) & _MASK64, seed, (seed - _P1) & _MASK64]
        while end - at >= 32:
            for lane, word in enumerate(struct.unpack_from("<4Q", data, at)):
                lanes[lane] = _round(lanes[lane], word)
            at += 32
        value = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK64
        for lane in lanes:
            value = ((value ^ _round(0, lane)) * _P1 + _P4) & _MASK64
    else:
        value = (seed + _P5) & _MASK64
    value = (value + end) & _MASK64
    while end - at >= 8:
        (word,) = struct.unpack_from("<Q", data, at)
        value = (_rotate(value ^ _round(0, word), 27) * _P1 + _P4) & _MASK64
        at += 8
    if end - at >= 4:
        (word,) = struct.unpack_from("<I", data, at)
        value = (_rotate(value ^ (word * _P1 & _MASK64), 23) * _P2 + _P3) & _MASK64
        at += 4
    for byte in data[at:]:
        value = _rotate(value ^ (byte * _P5 & _MASK64), 11) * _P1 & _MASK64
    value = (value ^ (value >> 33)) * _P2 & _MASK64
    value = (value ^ (value >> 29)) * _P3 & _MASK64
    return value ^ (value >> 32)


def body_digest(file: BinaryIO) -> int:
    """As src/data/token_file.h has it, of a file that is read from where it stands."""
    crc = 0
    while block := file.read(1 << 20):
        crc = zlib.crc32(block, crc)
    return 1 << 32 | crc


def is_token_file(path: Path) -> bool:
    """By its first bytes."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _create_locked(path: Path) -> BinaryIO:
    """A new file, locked for as long as it is open: that tells a writer at work from a dead one, on other machines too."""
    while True:
        file = path.open("wb")
        with contextlib.suppress(OSError):  # a file system without locks: nothing is removed there either
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # taken for a dead writer's before it was locked


def remove_stale(path: Path) -> None:
    """Removes what writers that were killed left in the folder of `path`: of this file, and of any .ptk file."""
    left = re.compile(rf"\.(?:.+\.ptk|{re.escape(path.name)})\.[0-9a-f]+\.tmp")
    with contextlib.suppress(OSError):
        for entry in path.parent.iterdir():
            if not left.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError), open(os.open(entry, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                entry.unlink()


class TokenFileWriter:
    """Streams samples to a file beside `path` and renames it there at the end, so that `path` is whole or as it was.

    Tokens go straight to disk, mask bits through a second temporary file; only the sample starts (8 bytes each) are held.
    What fails is a CommandError that names `path`.
    """

    def __init__(self, path: Path, vocabulary: int):
        self.path = Path(path)
        self.vocabulary = vocabulary
        self.tokens = 0
        self.supervised = 0
        self.longest = 0
        self._width = 2 if 0 < vocabulary <= 1 << 16 else 4
        self._starts = array("Q", [0])
        self._bits: list[np.ndarray] = []  # of the last _pending tokens
        self._pending = 0
        self._aside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.tmp")
        remove_stale(self.path)
        self._file = None
        with self._naming_the_file():
            try:  # a signal may end this anywhere, also when the file is there and nobody holds it yet
                self._file = _create_locked(self._aside)
                self._masks = tempfile.TemporaryFile(dir=self.path.parent)
                self._align(_HEADER.size)
            except BaseException:
                self._discard()
                raise

    @contextlib.contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # A wrong name is an argument's fault, a full or failing disk is not.
            wrong = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
            reason = f"{self.path}: cannot be written: {error.strerror or error}"
            raise CommandError(CONFIG if wrong else DATA, reason) from error

    @property
    def samples(self) -> int:
        return len(self._starts) - 1

    def add(self, ids, supervised) -> None:
        """One sample: equally long sequences of ids and of truth values."""
        ids = np.asarray(ids, dtype=np.uint16 if self._width == 2 else np.uint32)
        mask = np.asarray(supervised, dtype=np.uint8)
        assert ids.shape == mask.shape and ids.ndim == 1
        with self._naming_the_file():
            self._file.write(ids.tobytes())
        self.tokens += len(ids)
        self.supervised += int(mask.sum())
        self.longest = max(self.longest, len(ids))
        self._starts.append(self.tokens)
        self._bits.append(mask)
        self._pending += len(mask)
        if self._pending >= _MASK_BLOCK:
            bits = np.concatenate(self._bits)
            whole = len(bits) // 8 * 8
            with self._naming_the_file():
                self._masks.write(np.packbits(bits[:whole], bitorder="little").tobytes())
            self._bits, self._pending = [bits[whole:]], len(bits) - whole

    def finish(self, description: dict) -> None:
        with self._naming_the_file():
            self._finish(description)

    def _finish(self, description: dict) -> None:
        bits = np.concatenate(self._bits) if self._bits else np.zeros(0, np.uint8)
        self._masks.write(np.packbits(bits, bitorder="little").tobytes())
        sections = [_ALIGNMENT * -(-_HEADER.size // _ALIGNMENT)]
        sections.append(self._align(self._file.tell()))
        self._starts.tofile(self._file)
        sections.append(self._align(self._file.tell()))
        self._masks.seek(0)
        shutil.copyfileobj(self._masks, self._file)
        sections.append(self._align(self._file.tell()))
        text = json.dumps(description, ensure_ascii=False).encode()
        self._file.write(text)
        size = self._file.tell()
        head = _HEADER.pack(
            _MAGIC, _VERSION, self._width, self.tokens, self.samples, self.vocabulary, self.longest, *sections, len(text),
            size, 0,
        )[:-8]  # fmt: skip
        self._file.seek(0)
        self._file.write(head + struct.pack("<Q", xxh64(head)))
        self._file.flush()
        with self._aside.open("rb") as written:
            written.seek(_BODY_AT)
            digest = body_digest(written)
        self._file.seek(_DIGEST_AT)
        self._file.write(struct.pack("<Q", digest))
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._aside, self.path)  # before the lock goes, or a sweep could take it for a dead writer's
        self._file.close()
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _align(self, at: int) -> int:
        gap = -at % _ALIGNMENT
        self._file.seek(at)
        self._file.write(bytes(gap))
        return at + gap

    def __enter__(self) -> "TokenFileWriter":
        return self

    def __exit__(self, *_) -> None:
        self._discard()

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            self._aside.unlink(missing_ok=True)
        for file in (self._file, getattr(self, "_masks", None)):
            with contextlib.suppress(OSError):  # what was buffered may still find the disk full
                if file is not None:
                    file.close()


class TokenFile:
    """A .ptk file, mapped. CommandError when it is none."""

    def __init__(self, path: Path):
        self.path = Path(path)
        try:
            size = self.path.stat().st_size
            with self.path.open("rb") as file:
                head = file.read(_HEADER.size)
        except OSError as error:
            raise CommandError(DATA, f"{path}: cannot be read: {error.strerror or error}") from error
        if len(head) < _HEADER.size or not head.startswith(_MAGIC):
            raise CommandError(DATA, f"{path}: byte 0: not a .ptk token file")
        fields = _HEADER.unpack(head)
        _, version, width, tokens, samples, self.vocabulary, _, *sections, json_bytes, file_bytes, digest = fields
        if digest != xxh64(head[:-8]) or file_bytes != size or version != _VERSION:
            raise CommandError(DATA, f"{path}: the header is damaged, or the file was cut off")
        dtype = np.dtype("<u2") if width == 2 else np.dtype("<u4")
        data = np.memmap(self.path, mode="r")
        self.tokens = data[sections[0] : sections[0] + tokens * width].view(dtype)
        self.starts = data[sections[1] : sections[1] + (samples + 1) * 8].view("<u8")
        self._bits = data[sections[2] : sections[2] + (tokens + 7) // 8]
        try:
            self.description = json.loads(bytes(data[sections[3] : sections[3] + json_bytes]))
        except ValueError as error:
            raise CommandError(DATA, f"{path}: byte {sections[3]}: the description is damaged") from error

    def __len__(self) -> int:
        return len(self.starts) - 1

    def sample(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and mask (bool) of one sample."""
        first, end = int(self.starts[index]), int(self.starts[index + 1])
        bits = np.unpackbits(self._bits[first // 8 : (end + 7) // 8], bitorder="little")
        return np.asarray(self.tokens[first:end]), bits[first % 8 :][: end - first].astype(bool)
