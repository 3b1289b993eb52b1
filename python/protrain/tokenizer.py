"""The tokenizer of a local model folder: plain text to ids, a conversation to ids and the mask of its answers."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .caller import named
from .errors import FILES, BadRecord, CommandError, one_line

# For tokenizers without a chat template of their own: the layout of Alpaca, each answer closed by the end token.
PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '### Response:\\n' + message['content'] + eos_token + '\\n\\n' }}"
    "{% else %}{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}"
)
# What a tokenizer's entries can lie in, as src/train/prepare_data.cpp has it. Without any, the library may make an empty
# tokenizer and say nothing.
_VOCABULARY_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")
# Longer texts are tokenised in parts and so many characters a call, so that memory does not grow with a document: while
# they work, the tokenizers library holds some 200 bytes a token, against 8 in what is kept.
_PART_CHARACTERS = 1 << 18
_CALL_CHARACTERS = 1 << 21
# Byte-level tokenizers never join what this separates: a lone newline ends a word, an ASCII letter starts one.
_SAFE_CUT = re.compile(r"(?<=[A-Za-z0-9.,;:!?])\n(?=[A-Za-z])")


@dataclass
class Rendered:
    """A conversation as text and the character spans that are supervised; None: all of it."""

    text: str
    spans: list[tuple[int, int]] | None = field(default=None)


def _load(folder: Path):
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if not folder.is_dir():
        raise CommandError(FILES, f"{folder}: no such folder; {named('--tokenizer')} takes a local model folder")
    if not any(True for name in _VOCABULARY_FILES for _ in folder.glob(name)):
        raise CommandError(FILES, f"{folder / 'tokenizer.json'}: is missing; {named('--tokenizer')} takes a folder with a tokenizer")
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever a broken folder makes of the library
        lone = folder / "tokenizer.json"
        if lone.is_file() and not (folder / "tokenizer_config.json").is_file():
            try:
                return transformers.PreTrainedTokenizerFast(tokenizer_file=str(lone))
            except Exception as inner:
                raise CommandError(FILES, f"{lone}: not a tokenizer ({one_line(inner)})") from inner
        raise CommandError(FILES, f"{folder}: holds no tokenizer that can be loaded ({one_line(error)})") from error


def _configured_vocabulary(folder: Path) -> int:
    """vocab_size of config.json: models are often padded beyond their tokenizer. 0 when it does not say."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size", 0))
        return size if isinstance(size, int) and size > 0 else 0
    except (OSError, ValueError, AttributeError):
        return 0


class Tokenizer:
    """bos: "auto" prepends the start token to texts when the tokenizer does so itself, "yes" and "no" say it."""

    def __init__(self, folder: Path, *, bos: str = "auto", eos: bool = True):
        self.inner = _load(Path(folder))
        self.inner.model_max_length = int(1e30)  # lengths are cut by the trainer, not warned about here
        # The model's when it is known: a tokenizer may have grown entries that the model has no row for.
        self.vocabulary = _configured_vocabulary(Path(folder)) or len(self.inner)
        self.has_template = bool(getattr(self.inner, "chat_template", None))
        self._folder = folder
        self._bos = self._start_token(bos)
        self._eos = self.inner.eos_token_id if eos else None
        if eos and self._eos is None:
            raise CommandError(FILES, f"{folder}: the tokenizer has no eos_token to end samples with; give {named('--no-eos')}")
        added = self.inner.added_tokens_decoder.values()
        special = {token.content for token in added if token.special} | set(self.inner.all_special_tokens)
        ends = "|".join(re.escape(text) for text in sorted(special, key=len, reverse=True) if text)
        self._end_pattern = re.compile(rf"\s*(?:{ends})") if ends else None
        self._template: str | None = None
        self._byte_level: bool | None = None

    def _start_token(self, bos: str) -> int | None:
        if bos == "no":
            return None
        start = self.inner.bos_token_id
        if bos == "yes":
            if start is None:
                raise CommandError(FILES, f"{self._folder}: the tokenizer has no bos_token; {named('--append-bos')} must be auto or no")
            return start
        return start if start is not None and self.inner("a")["input_ids"][:1] == [start] else None

    def decode(self, ids) -> str:
        return self.inner.decode([int(token) for token in ids], clean_up_tokenization_spaces=False)

    # Texts.

    def encode_texts(self, texts: list[str]) -> list[np.ndarray]:
        """Ids of each text between the start token (if any) and one end token."""
        pieces: list[list[np.ndarray]] = [[] for _ in texts]
        parts: list[str] = []
        owners: list[int] = []

        def flush() -> None:
            if parts:
                for owner, ids in zip(owners, self._encode(parts)["input_ids"], strict=True):
                    pieces[owner].append(np.asarray(ids, np.uint32))
            parts.clear()
            owners.clear()

        waiting = 0
        for index, text in enumerate(texts):
            for part in self._parts(text):
                parts.append(part)
                owners.append(index)
                waiting += len(part)
                if waiting >= _CALL_CHARACTERS:
                    flush()
                    waiting = 0
        flush()
        return [self._enclose(np.concatenate(arrays)) for arrays in pieces]

    def _encode(self, texts: list[str], **options):
        return self.inner(texts, add_special_tokens=False, return_attention_mask=False, verbose=False, **options)

    def _enclose(self, ids: np.ndarray) -> np.ndarray:
        if self._bos is not None and (len(ids) == 0 or ids[0] != self._bos):
            ids = np.insert(ids, 0, self._bos)
        if self._eos is not None and (len(ids) == 0 or ids[-1] != self._eos):
            ids = np.append(ids, np.uint32(self._eos))
        return ids

    def _parts(self, text: str) -> Iterator[str]:
        begin = 0
        while len(text) - begin > _PART_CHARACTERS and self._cuts_are_safe():
            cut = _SAFE_CUT.search(text, begin + _PART_CHARACTERS)
            if cut is None:
                break
            yield text[begin : cut.end()]
            begin = cut.end()
        yield text[begin:]

    def _cuts_are_safe(self) -> bool:
        if self._byte_level is None:
            backend = getattr(self.inner, "backend_tokenizer", None)
            state = json.loads(backend.to_str()) if hasattr(backend, "to_str") else {}
            words = json.dumps(state.get("pre_tokenizer"))
            self._byte_level = (
                '"ByteLevel"' in words
                and '"add_prefix_space": true' not in words
                and (state.get("normalizer") or {"type": "NFC"})["type"] == "NFC"
            )
        return self._byte_level

    # Conversations.

    def render(self, messages: list[dict], *, everything: bool = False, last_only: bool = False) -> Rendered:
        """The text that apply_chat_template renders, with the span of each answer and its end token. BadRecord when the
        template refuses the conversation or changes an answer beyond recognition."""
        self._choose_template()
        try:
            text, marked = self._render_marked(messages)
        except Exception as error:  # templates raise what they like
            raise BadRecord(f"the tokenizer's chat template refuses it ({one_line(error)})") from error
        if everything:
            return Rendered(text)
        if marked is not None:
            return Rendered(text, marked[-1:] if last_only else marked)
        answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if last_only:
            answers = answers[-1:]
        return Rendered(text, [self._answer_span(messages, index, text) for index in answers])

    def _choose_template(self) -> None:
        if self._template is not None:
            return
        if not self.inner.is_fast:
            raise CommandError(FILES, f"{self._folder}: conversations need a tokenizer.json, which is not there")
        if self.has_template:
            self._template = self.inner.get_chat_template()
            return
        if self.inner.eos_token is None:
            raise CommandError(FILES, f"{self._folder}: the tokenizer has neither a chat_template nor an eos_token")
        starts = self.inner.bos_token if self._bos is not None else None
        self._template = ("{{ bos_token }}" if starts else "") + PLAIN_TEMPLATE
        self.inner.chat_template = self._template

    def _render_text(self, messages: list[dict], *, prompt: bool = False) -> str:
        return self.inner.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)

    def _render_marked(self, messages: list[dict]) -> tuple[str, list[tuple[int, int]] | None]:
        """With the spans that the template itself marks by {% generation %}, if it does."""
        text = self._render_text(messages)
        if not re.search(r"\{%-?\s*generation\s*-?%\}", self._template or ""):
            return text, None
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered, spans = render_jinja_template(
            conversations=[messages],
            chat_template=self._template,
            return_assistant_tokens_mask=True,
            **self.inner.special_tokens_map,
        )
        return text, [tuple(span) for span in spans[0]] if rendered[0] == text else None

    def _answer_span(self, messages: list[dict], index: int, text: str) -> tuple[int, int]:
        span = self._span_by_prefix(messages, index, text) or self._span_by_marks(messages, index, text)
        if span is None:
            raise BadRecord(f"the answer in message {index} cannot be found in what the chat template makes of it")
        return span

    def _span_by_prefix(self, messages: list[dict], index: int, text: str) -> tuple[int, int] | None:
        """What rendering adds when the answer is added; None if the template does not render turn by turn."""
        try:
            before = self._render_text(messages[:index], prompt=True)
            after = self._render_text(messages[: index + 1])
        except Exception:  # a template may refuse the shorter conversation
            return None
        if not after.startswith(before) or not text.startswith(after):
            return None
        content = messages[index]["content"].strip()
        found = after.find(content, len(before))
        if found < 0:
            return None
        return len(before), self._end_of_answer(after, found + len(content))

    def _span_by_marks(self, messages: list[dict], index: int, text: str) -> tuple[int, int] | None:
        """Renders with marks around the answer's text; they must be the only difference."""
        open_mark, close_mark = "\ue0f0answer\ue0f1", "\ue0f2answer\ue0f3"
        content = messages[index]["content"]
        core = content.strip()
        begin = content.find(core)
        marked_content = content[:begin] + open_mark + core + close_mark + content[begin + len(core) :]
        marked = [*messages[:index], {**messages[index], "content": marked_content}, *messages[index + 1 :]]
        try:
            rendered = self._render_text(marked)
        except Exception:
            return None
        if rendered.count(open_mark) != 1 or rendered.count(close_mark) != 1:
            return None
        if rendered.replace(open_mark, "").replace(close_mark, "") != text:
            return None
        start = rendered.index(open_mark)
        end = rendered.index(close_mark) - len(open_mark)
        return start, self._end_of_answer(text, end, own_turn=False)

    def _end_of_answer(self, text: str, end: int, *, own_turn: bool = True) -> int:
        """The answer's end token follows it, perhaps after blanks. Without one (own_turn: `text` ends with the turn) all
        that the template writes behind an answer is how it ends."""
        token = self._end_pattern.match(text, end) if self._end_pattern else None
        if token is not None:
            return token.end()
        return len(text) if own_turn else end

    def encode_rendered(self, conversations: list[Rendered]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids, equal to apply_chat_template(tokenize=True), and the mask of the tokens that overlap a span."""
        encoded = self._encode([item.text for item in conversations], return_offsets_mapping=True)
        results = []
        for item, ids, offsets in zip(conversations, encoded["input_ids"], encoded["offset_mapping"], strict=True):
            results.append((np.asarray(ids, np.int64), _overlaps(offsets, item.spans, len(ids))))
        return results


def _overlaps(offsets, spans: list[tuple[int, int]] | None, count: int) -> np.ndarray:
    if spans is None:
        return np.ones(count, bool)
    mask = np.zeros(count, bool)
    if count == 0:
        return mask
    begins, ends = np.asarray(offsets, np.int64).reshape(count, 2).T
    # Trimmed offsets leave a token of blanks empty, at its end.
    blank = begins == ends
    for start, end in spans:
        mask |= (ends > start) & (begins < end) & ~blank
        mask |= blank & (ends > start) & (ends <= end)
    return mask
