"""Faults one by one: the exit code, and a message that names file and line."""

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
import transformers
from chat_tokenizers import write_jsonl
from protrain import tokenizer
from protrain.token_file import TokenFile, TokenFileWriter
from tokenizers import Tokenizer

TEXTS = [{"text": f"the fox {number}"} for number in range(1000)]


def lines_of(records) -> list[bytes]:
    return [json.dumps(record).encode() + b"\n" for record in records]


@pytest.fixture
def fault(tmp_path, tokenizers, prepare, monkeypatch):
    """Prepares a file of these bytes: (exit code, stderr, number of samples or None)."""

    def run(content: bytes, *options, name: str = "data.jsonl", family: str = "chatml"):
        for entry in tmp_path.iterdir():
            entry.unlink()
        (tmp_path / name).write_bytes(content)
        output = tmp_path / "out.ptk"
        monkeypatch.chdir(tmp_path)
        code, out, err = prepare("--tokenizer", tokenizers[family], "--input", name, "--output", output, *options)
        left = sorted(entry.name for entry in tmp_path.iterdir())
        assert left == sorted([name, "out.ptk"] if code == 0 else [name]), "something was left behind"
        assert (code == 0) == (err == "") and err.count("\n") <= 1
        return code, err + out, len(TokenFile(output)) if code == 0 else None

    return run


def test_a_bad_line_is_named_and_can_be_skipped(fault):
    lines = lines_of(TEXTS)
    lines[718] = b'{"text": "the fox}\n'
    code, message, _ = fault(b"".join(lines))
    assert code == 4
    assert message.startswith("protrain prepare: data.jsonl:719: not JSON (")
    assert "use --skip-bad to skip and count bad records" in message
    code, message, samples = fault(b"".join(lines), "--skip-bad")
    assert (code, samples) == (0, 999)
    assert "skipped 1 bad records (first: data.jsonl:719: not JSON" in message


def test_bom_crlf_and_blank_lines_are_accepted(fault):
    lines = lines_of(TEXTS[:5])
    assert fault(b"\xef\xbb\xbf" + b"".join(lines))[::2] == (0, 5)
    assert fault(b"".join(lines).replace(b"\n", b"\r\n"))[::2] == (0, 5)
    assert fault(b"".join(lines) + b"\n  \r\n")[::2] == (0, 5)
    assert fault(b"".join(lines)[:-1])[::2] == (0, 5)  # no newline at the end


def test_a_truncated_last_line_is_named(fault):
    content = b"".join(lines_of(TEXTS[:5]))
    code, message, _ = fault(content[:-8])
    assert code == 4 and "data.jsonl:5: not JSON" in message and "was it cut off?" in message


@pytest.mark.parametrize("name", ["data.jsonl", "data.json", "data.txt", "data.csv", "data.parquet"])
def test_an_empty_file_is_a_data_fault(fault, name):
    code, message, _ = fault(b"", name=name)
    assert code == 4 and f"{name}: the file is empty" in message


@pytest.mark.parametrize(
    "name,content", [("data.jsonl", b"\n\n"), ("data.json", b"[ ]"), ("data.csv", b"text\n")], ids=["jsonl", "json", "csv"]
)
def test_a_file_without_records_is_a_data_fault(fault, name, content):
    code, message, _ = fault(content, name=name)
    assert code == 4 and "holds no record" in message


@pytest.mark.parametrize(
    "record,why",
    [
        (b"[1, 2]", "must be a JSON object, not an array"),
        (b"null", "must be a JSON object, not null"),
        (b'{"text": 5}', "text must be a string, not int"),
        (b'{"text": null}', "text must be a string, not NoneType"),
        (b'{"content": "x"}', "text is missing"),
        (b'{"text": NaN}', "NaN is not JSON"),
        (b'{"text": "\xff"}', "not UTF-8 (byte 10 of the line)"),
        (b'{"text": "\\ud800x"}', "text holds half of a surrogate pair at character 0"),
    ],
)
def test_each_bad_text_record_is_named(fault, record, why):
    code, message, _ = fault(b"".join(lines_of(TEXTS[:2])) + record + b"\n")
    assert code == 4
    assert message.startswith("protrain prepare: data.jsonl:3: ") and why in message


USER = {"role": "user", "content": "Hello"}
BYE = {"role": "assistant", "content": "bye"}


@pytest.mark.parametrize(
    "record,why",
    [
        ({"other": 1}, "unknown form: it has the keys other; expected one of"),
        ({}, "the record is empty; expected one of the keys"),
        ({"messages": []}, "messages must be a list"),
        ({"messages": [USER]}, "no assistant turn"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages[1].content must be a string"),
        ({"messages": [USER, "bye"]}, "messages[1] must be an object"),
        ({"messages": [USER, {"role": "bot", "content": "x"}]}, "messages[1].role is 'bot'; known are system, developer, user,"),
        ({"messages": [BYE, USER]}, "messages[0] is a turn of assistant out of order: no turn of a user comes before it"),
        ({"messages": [USER, USER, BYE]}, "messages[1] is a turn of user out of order: it follows a user turn"),
        ({"messages": [USER, BYE, BYE]}, "messages[2] is a turn of assistant out of order: it follows an assistant turn"),
        ({"messages": [USER, BYE, {**USER, "role": "system"}]}, "messages[2] is a turn of system out of order: system opens"),
        ({"messages": [USER, {**USER, "role": "tool"}, BYE]}, "messages[1] is a turn of tool out of order: no assistant turn"),
        ({"messages": [{**USER, "content": " "}, {**BYE, "content": ""}]}, "every turn is empty"),
        ({"conversations": []}, "conversations must be a list of {from, value} that is not empty"),
        ({"conversations": [{"from": ["gpt"], "value": "x"}]}, "conversations[0].from is ['gpt']; known are human, user, gpt"),
        ({"conversations": [{"from": "gpt", "value": "x"}]}, "conversations[0] is a turn of assistant out of order"),
        (
            {"system": "s", "conversations": [{"from": "system", "value": "x"}, {"from": "gpt", "value": "x"}]},
            "conversations[1] is a turn of assistant out of order",
        ),
        ({"instruction": "", "output": " "}, "every turn is empty"),
        ({"conversations": [{"from": "robot", "value": "x"}]}, "conversations[0].from is 'robot'"),
        ({"conversations": [{"from": "gpt"}]}, "conversations[0] must be an object"),
        ({"instruction": "x"}, "output is missing"),
        ({"instruction": "x", "output": "y", "history": [["a"]]}, "history[0] must be a pair"),
        ({"input_ids": "5"}, "input_ids must be a list of integers"),
        ({"input_ids": [5, 6.5]}, "input_ids must be a list of integers"),
        ({"input_ids": [5, 100000]}, "input_ids[1] is 100000, but the vocabulary has"),
        ({"input_ids": [5, -1]}, "input_ids[1] is -1"),
        ({"input_ids": [5, 6], "labels": [5]}, "labels has 1 entries, but input_ids has 2"),
        ({"input_ids": [5, 6], "labels": [5, 7]}, "labels[1] is 7, but input_ids[1] is 6"),
        ({"input_ids": [5, 6, 7], "attention_mask": [1, 0, 1]}, "attention_mask hides tokens in the middle"),
    ],
)
def test_each_bad_record_of_other_forms_is_named(fault, record, why):
    code, message, _ = fault(b"".join(lines_of([record])))
    assert code == 4
    assert message.startswith("protrain prepare: data.jsonl:1: ") and why in message


def test_what_a_template_refuses_is_named(fault):
    chat = {"messages": [USER, BYE, {"role": "tool", "content": "42"}, BYE]}  # its template has no place for results
    code, message, _ = fault(b"".join(lines_of([chat])), family="mistral")
    assert code == 4 and "data.jsonl:1: the tokenizer's chat template refuses it (roles must alternate)" in message


def test_samples_without_a_supervised_token_are_dropped_and_counted(fault):
    records = [{"input_ids": [5, 6], "labels": [5, -100]}, {"input_ids": [5, 6]}, {"input_ids": [7]}]
    code, message, samples = fault(b"".join(lines_of(records)))
    assert (code, samples) == (0, 1)
    assert "dropped 2 without a supervised token (first: data.jsonl:1)" in message
    code, message, _ = fault(b"".join(lines_of(records[::2])))
    assert code == 4 and "data.jsonl: no sample is left to train on; dropped 2" in message


@pytest.mark.parametrize(
    "content,place",
    [
        (b'[\n{"text": "a b"},\n{"text": "c d"\n', "data.json:4: not JSON"),
        (b'[\n{"text": "a b"}\n{"text": "c d"}\n]', "data.json:3: not JSON (expected ',' or ']')"),
        (b'[{"text": "a b"},\n5]', "data.json:2: a record must be a JSON object, not a number"),
        (b'[{"text": "a b"}]\nx', "data.json:"),
        (b'[{"text": "a b"},', "data.json:1: not JSON"),
    ],
)
def test_faults_in_an_array_are_named_by_line(fault, content, place):
    code, message, _ = fault(content, name="data.json")
    assert code == 4 and place in message


def test_faults_in_csv_and_parquet_are_named(fault):
    code, message, _ = fault(b"text,id\nfox,1\ndog\n", name="data.csv")
    assert code == 4 and "data.csv:3: 1 fields, but the header has 2" in message
    code, message, _ = fault(b"PAR1 not really", name="data.parquet")
    assert code == 4 and "data.parquet: not a parquet file" in message


def test_arguments_and_folders_have_their_own_exit_codes(tmp_path, tokenizers, prepare):
    source = write_jsonl(tmp_path / "x.jsonl", [{"text": "the fox"}])
    out = tmp_path / "x.ptk"
    good = tokenizers["chatml"]
    assert prepare("--tokenizer", good, "--input", source)[0] == 2
    assert prepare("--tokenizer", good, "--input", source, "--output", out, "--form", "poem")[0] == 2
    assert prepare("--tokenizer", good, "--input", source, "--output", out, "--max-samples", -1)[0] == 2
    assert prepare("--tokenizer", good, "--input", tmp_path / "none.jsonl", "--output", out)[0] == 4
    assert prepare("--tokenizer", good, "--input", tmp_path / "x.*f", "--output", out)[0] == 4
    code, _, err = prepare("--input", source, "--output", out)
    assert code == 2 and "need --tokenizer" in err
    code, _, err = prepare("--tokenizer", good, "--input", source, "--output", tmp_path / "absent" / "x.ptk")
    assert code == 2 and "cannot be written" in err
    code, _, err = prepare("--tokenizer", tmp_path / "absent", "--input", source, "--output", out)
    assert code == 5 and "no such folder" in err
    (tmp_path / "hollow").mkdir()
    code, _, err = prepare("--tokenizer", tmp_path / "hollow", "--input", source, "--output", out)
    assert code == 5 and "hollow/tokenizer.json: is missing" in err
    (tmp_path / "hollow" / "tokenizer.json").write_text("{}")
    code, _, err = prepare("--tokenizer", tmp_path / "hollow", "--input", source, "--output", out)
    assert code == 5 and "tokenizer.json: not a tokenizer" in err
    assert not out.exists()


def patterns_of_cpp(name: str) -> list[str]:
    source = (Path(__file__).parents[2] / "src" / "train" / "prepare_data.cpp").read_text("utf-8")
    return re.findall(r'"([^"]+)"', re.search(name + r" = \{([^}]*)\}", source)[1])


def test_both_sides_know_a_tokenizer_by_the_same_files():
    assert tuple(patterns_of_cpp("kVocabularyFiles")) == tokenizer._VOCABULARY_FILES


def test_the_key_of_cached_data_has_every_file_that_tokenizers_read():
    known = patterns_of_cpp("kVocabularyFiles") + patterns_of_cpp("kShapingFiles")
    # Tokenizers without a vocabulary file that _load wants are refused.
    refused = {"prophetnet.tokenizer", "byte_maps.json"}
    for path in Path(transformers.__file__).parent.glob("models/*/tokenization*.py"):
        for name in re.findall(r'"[a-z_]+_file": "([^"]+)"', path.read_text("utf-8")):
            assert name in refused or any(fnmatch(name, pattern) for pattern in known), (path.name, name)


def test_a_lone_tokenizer_json_is_enough(tmp_path, tokenizers, prepare):
    (tmp_path / "lone").mkdir()
    (tmp_path / "lone" / "tokenizer.json").write_bytes((tokenizers["chatml"] / "tokenizer.json").read_bytes())
    source = write_jsonl(tmp_path / "x.jsonl", [{"text": "the fox"}])
    command = ("--tokenizer", tmp_path / "lone", "--input", source, "--output", tmp_path / "x.ptk")
    code, _, err = prepare(*command)
    assert code == 5 and "--no-eos" in err
    assert prepare(*command, "--no-eos")[0] == 0


RARE = "slings and arrows of outrageous fortune, whether brown dogs jump over nobler foxes"


@pytest.mark.parametrize("form", ["text", "messages", "tokenised"])
def test_an_id_beyond_the_models_vocabulary_is_named_by_line(fault, tokenizers, form):
    # As with a tokenizer that has grown beyond its model. Records are tokenised many at a time: the fault is the third's.
    inner = Tokenizer.from_file(str(tokenizers["chatml"] / "tokenizer.json"))
    bound = max(inner.encode("<|im_start|>user\n!<|im_end|>\n<|im_start|>assistant\n!<|im_end|>\n").ids) + 1
    assert max(inner.encode(RARE).ids) >= bound

    def record(text: str) -> dict:
        chat = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
        return {"text": {"text": text}, "messages": {"messages": chat}, "tokenised": {"input_ids": inner.encode(text).ids}}[form]

    content = b"".join(lines_of([record("!!"), record("! !"), record(RARE), record("!!")]))
    code, message, _ = fault(content, "--vocabulary", bound)
    assert code == 4 and message.startswith("protrain prepare: data.jsonl:3: ") and f"vocabulary has {bound}" in message
    code, message, samples = fault(content, "--vocabulary", bound, "--skip-bad")
    assert (code, samples) == (0, 3) and "skipped 1 bad records (first: data.jsonl:3: " in message


def test_the_models_config_bounds_ids_of_a_larger_tokenizer(tmp_path, tokenizers, prepare):
    folder = tokenizers["chatml"]
    (folder / "config.json").write_text('{"vocab_size": 42}')
    source = write_jsonl(tmp_path / "x.jsonl", [{"text": "!"}, {"text": "Hello"}])
    try:
        code, _, err = prepare("--tokenizer", folder, "--input", source, "--output", tmp_path / "x.ptk")
        assert code == 4 and f"{source}:2: token" in err and "vocabulary has 42" in err
    finally:
        (folder / "config.json").unlink()


def test_ids_up_to_the_models_vocabulary_are_accepted(tmp_path, tokenizers, prepare):
    # Models are often padded beyond their tokenizer; config.json in the same folder says how far.
    folder = tokenizers["chatml"]
    (folder / "config.json").write_text('{"vocab_size": 70000}')
    source = write_jsonl(tmp_path / "x.jsonl", [{"input_ids": [5, 69999]}])
    try:
        command = ("--tokenizer", folder, "--input", source, "--output", tmp_path / "x.ptk")
        assert prepare(*command)[0] == 0
        assert TokenFile(tmp_path / "x.ptk").sample(0)[0].tolist() == [5, 69999]
        write_jsonl(source, [{"input_ids": [5, 70000]}])
        assert prepare(*command)[0] == 4
    finally:
        (folder / "config.json").unlink()


def test_data_that_cannot_be_read_is_a_data_fault(tmp_path, prepare):
    with TokenFileWriter(tmp_path / "good.ptk", 10) as writer:
        writer.add([1, 2], [True, True])
        writer.finish({})
    good = (tmp_path / "good.ptk").read_bytes()
    (tmp_path / "folder.ptk").mkdir()
    (tmp_path / "cut.ptk").write_bytes(good[:-1])
    (tmp_path / "flipped.ptk").write_bytes(good[:20] + b"\xff" + good[21:])
    (tmp_path / "described.ptk").write_bytes(good[:-2] + b"}{")
    for name in ("folder", "cut", "flipped", "described", "absent"):
        code, _, err = prepare("--input", tmp_path / f"{name}.ptk", "--show", 1)
        assert code == 4 and err.startswith(f"protrain prepare: {tmp_path / name}.ptk: "), (name, err)


def test_a_training_run_is_told_its_own_keys(fault, monkeypatch):
    monkeypatch.setenv("PROTRAIN_CALLER", "1")
    code, message, _ = fault(b'{"text": 5}\n')
    assert code == 4 and "use skip_bad: true to skip" in message


def test_options_are_spelt_as_keys_too(fault):
    content = b"".join(lines_of([*TEXTS[:3], {"text": 5}]))
    assert fault(content, "--max_samples=2", "--train_on_inputs", "--skip_bad")[::2] == (0, 2)
    assert fault(content, "--max-samples", 0, "--skip-bad")[::2] == (0, 3)


def test_a_file_that_is_no_token_file_is_not_written_over(tmp_path, tokenizers, prepare):
    source, out = tmp_path / "data.txt", tmp_path / "thesis.docx"
    source.write_text("the quick brown fox\n" * 50)
    words = ("--tokenizer", tokenizers["plain"], "--input", source, "--output", out)
    out.write_text("years of work")
    code, _, err = prepare(*words)
    assert code == 2 and "thesis.docx is there and no token file" in err and err.count("\n") == 1
    assert out.read_text() == "years of work"
    assert prepare(*words, "--overwrite")[0] == 0
    assert prepare(*words)[0] == 0  # a token file by now
    assert len(TokenFile(out)) == 1


def test_a_text_of_white_space_is_an_empty_file(fault):
    code, message, _ = fault(b" \n\t\r\n", name="blank.txt")
    assert code == 4 and "blank.txt: the file is empty" in message


@pytest.mark.parametrize("name", ["--x_y.jsonl", "a,b.jsonl", "-q.jsonl"])
def test_names_that_look_like_options_can_be_given(tmp_path, tokenizers, prepare, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / name, TEXTS[:3])
    words = ("--tokenizer", tokenizers["plain"], "--output", "x.ptk")
    assert prepare(*words, f"--input={name}", f"--input={name}")[0] == 0
    assert len(TokenFile(tmp_path / "x.ptk")) == 6
    assert prepare(*words, "--input", "--", name)[0] == 0
    assert len(TokenFile(tmp_path / "x.ptk")) == 3
