"""What is learnt of each form: the ids are the tokenizer's own, the mask covers the answers and their end tokens."""

import json
import random

import pytest
from chat_tokenizers import TEXT, write_jsonl
from protrain.token_file import TokenFile


def samples_of(path) -> list[tuple[list[int], list[bool]]]:
    file = TokenFile(path)
    return [(ids.tolist(), mask.tolist()) for ids, mask in (file.sample(index) for index in range(len(file)))]


def runs(tokenizer, ids, mask) -> list[str]:
    """The supervised runs as text."""
    found, before = [], False
    for token, bit in zip(ids, mask):
        if bit:
            found = [*found[:-1], [*found[-1], token]] if before else [*found, [token]]
        before = bit
    return [tokenizer.decode(run, clean_up_tokenization_spaces=False) for run in found]


def load(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def random_chat(draw: random.Random) -> list[dict]:
    words = TEXT.split() + ["🎉", "naïve", "日本", "12345", "(x)"]

    def some(least: int = 1) -> str:
        return " ".join(draw.choices(words, k=draw.randrange(least, 12)))

    messages = [{"role": "system", "content": some()}] if draw.random() < 0.4 else []
    for _ in range(draw.randrange(1, 4)):
        messages.append({"role": "user", "content": some()})
        messages.append({"role": "assistant", "content": some()})
    return messages


ENDS = {
    "chatml": ("", "<|im_end|>"),
    "llama3": ("", "<|eot|>"),
    "mistral": (" ", "</s>"),
    "phi": ("", "<|im_end|>"),
    "qwen3": ("", "<|im_end|>"),
    "generation": ("", "<|im_end|>"),
    "plain": ("", "</s>"),
}


@pytest.mark.parametrize("family", ENDS)
def test_chats_have_the_templates_ids_and_the_loss_on_answers(tmp_path, tokenizers, prepare, family):
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    chats = [random_chat(draw) for _ in range(40)]
    source = write_jsonl(tmp_path / "chats.jsonl", [{"messages": chat} for chat in chats])
    code, _, err = prepare("--tokenizer", tokenizers[family], "--input", source, "--output", tmp_path / "x.ptk")
    assert code == 0, err

    tokenizer = load(tokenizers[family])
    if family == "plain":
        from protrain.tokenizer import PLAIN_TEMPLATE

        tokenizer.chat_template = PLAIN_TEMPLATE
    before, end = ENDS[family]
    samples = samples_of(tmp_path / "x.ptk")
    assert len(samples) == len(chats)
    for chat, (ids, mask) in zip(chats, samples):
        assert ids == tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False)  # one start token at most
        expected = [before + turn["content"] + end for turn in chat if turn["role"] == "assistant"]
        if family == "mistral":  # where marks find the answer, a blank before it is the prompt's
            assert [run.strip() for run in runs(tokenizer, ids, mask)] == [text.strip() for text in expected]
        else:
            assert runs(tokenizer, ids, mask) == expected


def test_no_second_start_token(tmp_path, tokenizers, prepare):
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "good bye"}]
    for family in ("llama3", "mistral"):
        source = write_jsonl(tmp_path / "chats.jsonl", [{"messages": chat}, {"text": "x"}][:1])
        assert prepare("--tokenizer", tokenizers[family], "--input", source, "--output", tmp_path / "x.ptk")[0] == 0
        [(ids, _)] = samples_of(tmp_path / "x.ptk")
        start = load(tokenizers[family]).bos_token_id
        assert ids.count(start) == 1 and ids[0] == start


def test_an_earlier_thought_that_the_template_drops_is_not_trained(tmp_path, tokenizers, prepare):
    chat = [
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\n12 days"},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "<think>\nyes\n</think>\n\nYes."},
    ]
    source = write_jsonl(tmp_path / "chats.jsonl", [{"messages": chat}])
    command = ("--tokenizer", tokenizers["qwen3"], "--input", source, "--output", tmp_path / "x.ptk")
    code, _, err = prepare(*command)
    assert code == 4 and "chats.jsonl:1: the answer in message 1 cannot be found" in err
    assert prepare(*command, "--mask-history")[0] == 0
    [(ids, mask)] = samples_of(tmp_path / "x.ptk")
    assert runs(load(tokenizers["qwen3"]), ids, mask) == ["<think>\nyes\n</think>\n\nYes.<|im_end|>"]


def test_mask_history_and_train_on_prompt(tmp_path, tokenizers, prepare):
    for family in ("chatml", "generation", "mistral"):
        chat = random_chat(random.Random(1)) + [{"role": "user", "content": "No?"}, {"role": "assistant", "content": "No."}]
        source = write_jsonl(tmp_path / "chats.jsonl", [{"messages": chat}])
        command = ("--tokenizer", tokenizers[family], "--input", source, "--output", tmp_path / "x.ptk")
        assert prepare(*command, "--mask-history")[0] == 0
        [(ids, mask)] = samples_of(tmp_path / "x.ptk")
        assert [run.strip() for run in runs(load(tokenizers[family]), ids, mask)] == ["No." + ENDS[family][1]]
        assert prepare(*command, "--train-on-prompt")[0] == 0
        assert all(samples_of(tmp_path / "x.ptk")[0][1])


def test_alpaca_and_sharegpt_are_the_same_chats_in_other_words(tmp_path, tokenizers, prepare):
    messages = [
        {"role": "system", "content": "You are good."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Answer the question\nHow many?"},
        {"role": "assistant", "content": "It is 12."},
    ]
    alpaca = {
        "system": "You are good.",
        "history": [["Hello", "Yes."]],
        "instruction": "Answer the question",
        "input": "How many?",
        "output": "It is 12.",
    }
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    sharegpt = {"conversations": [{"from": names[turn["role"]], "value": turn["content"]} for turn in messages]}
    results = []
    for record in ({"messages": messages}, alpaca, sharegpt):
        source = write_jsonl(tmp_path / "x.jsonl", [record])
        assert prepare("--tokenizer", tokenizers["chatml"], "--input", source, "--output", tmp_path / "x.ptk")[0] == 0
        results += samples_of(tmp_path / "x.ptk")
    assert results[0] == results[1] == results[2]


def test_texts_are_all_supervised_and_end_in_the_end_token(tmp_path, tokenizers, prepare):
    source = write_jsonl(tmp_path / "x.jsonl", [{"text": "The quick brown fox"}, {"text": "ends itself<|im_end|>"}])
    tokenizer = load(tokenizers["chatml"])
    assert prepare("--tokenizer", tokenizers["chatml"], "--input", source, "--output", tmp_path / "x.ptk")[0] == 0
    samples = samples_of(tmp_path / "x.ptk")
    assert samples[0][0] == tokenizer.encode("The quick brown fox") + [tokenizer.eos_token_id]
    assert samples[1][0] == tokenizer.encode("ends itself") + [tokenizer.eos_token_id]  # not twice
    assert all(samples[0][1])
    command = ("--tokenizer", tokenizers["chatml"], "--input", source, "--output", tmp_path / "x.ptk")
    assert prepare(*command, "--no-eos")[0] == 0
    assert samples_of(tmp_path / "x.ptk")[0][0] == tokenizer.encode("The quick brown fox")


def test_texts_start_as_the_tokenizer_starts_them(tmp_path, tokenizers, prepare):
    source = write_jsonl(tmp_path / "x.jsonl", [{"text": "The fox"}])
    tokenizer = load(tokenizers["llama3"])
    command = ("--tokenizer", tokenizers["llama3"], "--input", source, "--output", tmp_path / "x.ptk")
    assert prepare(*command)[0] == 0
    assert samples_of(tmp_path / "x.ptk")[0][0] == tokenizer.encode("The fox") + [tokenizer.eos_token_id]
    assert prepare(*command, "--append-bos", "no")[0] == 0
    assert samples_of(tmp_path / "x.ptk")[0][0][0] != tokenizer.bos_token_id


def test_a_long_document_cut_into_parts_has_the_ids_of_the_whole(tmp_path, tokenizers, prepare, monkeypatch):
    draw = random.Random(5)
    text = "".join(draw.choice(["Yes.\n", "fox ", "\n\n", "  ", "12\n", "dog,\nand", "\t", "naïve 🎉\n", "\r\n"]) for _ in range(20000))
    (tmp_path / "x.txt").write_bytes(text.encode())
    monkeypatch.setattr("protrain.tokenizer._PART_CHARACTERS", 100)
    assert prepare("--tokenizer", tokenizers["chatml"], "--input", tmp_path / "x.txt", "--output", tmp_path / "x.ptk")[0] == 0
    [(ids, _)] = samples_of(tmp_path / "x.ptk")
    assert ids[:-1] == load(tokenizers["chatml"]).encode(text.replace("\r\n", "\n"))


def test_tokenised_samples_keep_ids_and_labels(tmp_path, prepare, tokenizers):
    records = [
        {"input_ids": [5, 6, 7], "labels": [-100, 6, -100]},
        {"input_ids": [5, 6, 7]},
        {"input_ids": [9, 9, 5, 6, 9], "labels": [-100, -100, -100, 6, -100], "attention_mask": [0, 0, 1, 1, 0]},
    ]
    source = write_jsonl(tmp_path / "x.jsonl", records)
    expected = [([5, 6, 7], [False, True, False]), ([5, 6, 7], [True] * 3), ([5, 6], [False, True])]
    for tokenizer in ([], ["--tokenizer", tokenizers["chatml"]]):
        assert prepare(*tokenizer, "--input", source, "--output", tmp_path / "x.ptk")[0] == 0
        assert samples_of(tmp_path / "x.ptk") == expected


def test_every_kind_of_file_gives_the_same_samples(tmp_path, tokenizers, prepare):
    pyarrow = pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
    import pyarrow.parquet

    texts = ["The quick\nbrown fox", 'He said "no", twice', "日本 🎉"]
    records = [{"text": text} for text in texts]
    write_jsonl(tmp_path / "a.jsonl", records)
    (tmp_path / "b.json").write_text(json.dumps(records, indent=2))
    (tmp_path / "c.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(records, ensure_ascii=False).encode())
    quoted = ['"' + text.replace('"', '""') + '"' for text in texts]
    (tmp_path / "d.csv").write_text("id,text\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate(quoted)))
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "e.parquet")
    results = {}
    for name in ("a.jsonl", "b.json", "c.json", "d.csv", "e.parquet"):
        code, _, err = prepare("--tokenizer", tokenizers["chatml"], "--input", tmp_path / name, "--output", tmp_path / "x.ptk")
        assert code == 0, err
        results[name] = samples_of(tmp_path / "x.ptk")
    assert all(result == results["a.jsonl"] for result in results.values())
    assert len(results["a.jsonl"]) == 3


def test_globs_and_max_samples(tmp_path, tokenizers, prepare):
    for name, text in (("b", "dog"), ("a", "fox"), ("c", "mind")):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": f"the {text}"}])
    command = ("--tokenizer", tokenizers["chatml"], "--input", tmp_path / "*.jsonl", "--output", tmp_path / "x.ptk")
    assert prepare(*command, "--max-samples", 2)[0] == 0
    tokenizer = load(tokenizers["chatml"])
    found = [tokenizer.decode(ids[:-1]) for ids, _ in samples_of(tmp_path / "x.ptk")]
    assert found == ["the fox", "the dog"]


def test_show_prints_the_mask_of_input_and_of_a_prepared_file(tmp_path, tokenizers, prepare):
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good\nbye"}]
    source = write_jsonl(tmp_path / "x.jsonl", [{"messages": chat}] * 3)
    code, out, _ = prepare("--tokenizer", tokenizers["chatml"], "--input", source, "--show", 2)
    assert code == 0
    assert '  - "<|im_start|>user\\nHello<|im_end|>\\n<|im_start|>assistant\\n"\n  + "Good\\nbye<|im_end|>"\n' in out
    assert out.count("sample ") == 2 and f"{source}:2" in out
    assert prepare("--tokenizer", tokenizers["chatml"], "--input", source, "--output", tmp_path / "x.ptk")[0] == 0
    _, again, _ = prepare("--tokenizer", tokenizers["chatml"], "--input", tmp_path / "x.ptk", "--show", 2)
    assert [line for line in again.splitlines() if line.startswith("  ")] == [
        line for line in out.splitlines() if line.startswith("  ")
    ]


def test_the_end_of_an_answer_is_supervised_when_it_is_also_the_padding(tmp_path, tokenizers, prepare):
    # Padding is masked by position, so a tokenizer whose pad token is its end token loses nothing.
    settings_path = tokenizers["chatml"] / "tokenizer_config.json"
    settings = json.loads(settings_path.read_text())
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "bye"}]
    source = write_jsonl(tmp_path / "x.jsonl", [{"messages": chat}])
    settings_path.write_text(json.dumps({**settings, "pad_token": "<|im_end|>"}))
    try:
        assert prepare("--tokenizer", tokenizers["chatml"], "--input", source, "--output", tmp_path / "x.ptk")[0] == 0
    finally:
        settings_path.write_text(json.dumps(settings))
    [(ids, mask)] = samples_of(tmp_path / "x.ptk")
    tokenizer = load(tokenizers["chatml"])
    answer = tokenizer.encode("bye") + [tokenizer.convert_tokens_to_ids("<|im_end|>")]
    assert [token for token, bit in zip(ids, mask) if bit] == answer


def test_calls_and_their_results_are_turns(tmp_path, tokenizers, prepare):
    turns = [("human", "12 and 345?"), ("function_call", "add"), ("observation", "357"), ("gpt", "It is 357"), ("human", "good")]
    shared = {"conversations": [{"from": speaker, "value": text} for speaker, text in turns]}
    roles = ("user", "assistant", "tool", "assistant", "user")
    chat = {"messages": [{"role": role, "content": text} for role, (_, text) in zip(roles, turns)]}
    source = write_jsonl(tmp_path / "x.jsonl", [shared])
    other = write_jsonl(tmp_path / "y.jsonl", [chat])
    for path in (source, other):
        command = ("--tokenizer", tokenizers["chatml"], "--input", path, "--output", path.with_suffix(".ptk"))
        assert prepare(*command)[0] == 0
    [(ids, mask)] = samples_of(tmp_path / "x.ptk")
    assert samples_of(tmp_path / "y.ptk") == [(ids, mask)]
    assert runs(load(tokenizers["chatml"]), ids, mask) == ["add<|im_end|>", "It is 357<|im_end|>"]
