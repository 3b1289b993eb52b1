"""The .ptk files that Python writes, read back byte by byte as src/data/token_file.h describes them."""

import gzip
import io
import json
import random
import struct
from pathlib import Path

import pytest

from protrain.token_file import TokenFile, TokenFileWriter, body_digest, xxh64


def test_xxh64_gives_the_published_values():
    assert xxh64(b"") == 0xEF46DB3751D8E999
    assert xxh64(b"a") == 0xD24EC4F1A98C6E5B
    assert xxh64(b"abc") == 0x44BC2CF5AD770999
    assert xxh64(b"Call me Ishmael. Some years ago--never mind how long precisely-") == 0x02A2E85470D6FD96


def test_the_digest_is_a_crc32_by_its_published_check_value():
    assert body_digest(io.BytesIO(b"123456789")) == 1 << 32 | 0xCBF43926
    long = random.Random(1).randbytes(3 * (1 << 20) + 5)  # several reads
    assert body_digest(io.BytesIO(long)) == 1 << 32 | struct.unpack("<I", gzip.compress(long)[-8:-4])[0]


@pytest.mark.parametrize("vocabulary,width", [(0, 4), (300, 2), (65536, 2), (65537, 4)])
def test_every_section_is_where_the_format_says(tmp_path, vocabulary, width):
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    samples = []
    for _ in range(draw.randrange(1, 40)):
        count = draw.randrange(30)
        samples.append(([draw.randrange(300) for _ in range(count)], [draw.random() < 0.5 for _ in range(count)]))
    path = tmp_path / "x.ptk"
    with TokenFileWriter(path, vocabulary) as writer:
        for ids, mask in samples:
            writer.add(ids, mask)
        writer.finish({"form": "text", "name": "é"})

    data = path.read_bytes()
    assert data[:8] == b"PTKTOK1\0"
    numbers = struct.unpack_from("<2I4Q4Q3Q", data, 8)
    version, token_bytes, tokens, count, vocab, longest, tokens_at, starts_at, mask_at, json_at, json_bytes, size, digest = numbers
    ids = [token for sample, _ in samples for token in sample]
    mask = [bit for _, bits in samples for bit in bits]
    assert (version, token_bytes, tokens, count, vocab) == (1, width, len(ids), len(samples), vocabulary)
    assert longest == max(len(sample) for sample, _ in samples)
    assert size == len(data) and digest == xxh64(data[:96])
    assert struct.unpack_from("<Q", data, 104)[0] == body_digest(io.BytesIO(data[112:]))
    assert all(at % 64 == 0 for at in (tokens_at, starts_at, mask_at, json_at))
    assert list(struct.unpack_from(f"<{tokens}{'H' if width == 2 else 'I'}", data, tokens_at)) == ids
    starts = struct.unpack_from(f"<{count + 1}Q", data, starts_at)
    assert [end - begin for begin, end in zip(starts, starts[1:])] == [len(sample) for sample, _ in samples]
    assert starts[0] == 0
    assert [bool(data[mask_at + i // 8] >> (i % 8) & 1) for i in range(tokens)] == mask
    assert json.loads(data[json_at : json_at + json_bytes]) == {"form": "text", "name": "é"}

    read = TokenFile(path)
    for index, (sample, bits) in enumerate(samples):
        found, supervised = read.sample(index)
        assert found.tolist() == sample and supervised.tolist() == bits


def test_the_mask_survives_its_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("protrain.token_file._MASK_BLOCK", 16)
    draw = random.Random(3)
    samples = [[draw.random() < 0.5 for _ in range(draw.randrange(40))] for _ in range(30)]
    with TokenFileWriter(tmp_path / "x.ptk", 10) as writer:
        for bits in samples:
            writer.add([1] * len(bits), bits)
        writer.finish({})
    read = TokenFile(tmp_path / "x.ptk")
    assert [read.sample(index)[1].tolist() for index in range(len(read))] == samples


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x.ptk"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), TokenFileWriter(path, 10) as writer:
        writer.add([1], [True])
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.ptk"]


def test_the_file_that_the_cpp_reader_is_tested_with_is_what_python_writes(tmp_path):
    # src/data/token_file_test.cpp reads agreed.ptk and states the same samples.
    agreed = Path(__file__).with_name("agreed.ptk")
    with TokenFileWriter(tmp_path / "x.ptk", 70000) as writer:
        writer.add([5, 6, 69999], [False, True, True])
        writer.add([], [])
        writer.add([7, 8, 9, 10, 11, 12, 13], [True, False, True, False, False, False, True])
        writer.finish({"form": "tokenised"})
    assert (tmp_path / "x.ptk").read_bytes() == agreed.read_bytes()
