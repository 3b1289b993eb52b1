"""What a record means: text, a conversation, or tokens. Checks every field that is used and names the one that is wrong."""

from dataclasses import dataclass

from .errors import BadRecord

FORMS = ("text", "alpaca", "sharegpt", "messages", "tokenised")
_KEYS = {  # the keys that tell a form, most telling first
    "input_ids": "tokenised",
    "messages": "messages",
    "conversations": "sharegpt",
    "instruction": "alpaca",
    "text": "text",
}
_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}
_OPENING_ROLES = ("system", "developer")
_RESULT_ROLES = ("tool", "function", "ipython", "observation", "environment")  # by family: what a call gave back
_ROLES = (*_OPENING_ROLES, "user", "assistant", *_RESULT_ROLES)
IGNORED_LABEL = -100


@dataclass
class Tokens:
    ids: list[int]
    supervised: list[bool]


def detect_form(value: dict) -> str:
    for key, form in _KEYS.items():
        if key in value:
            return form
    if not value:
        raise BadRecord(f"the record is empty; expected one of the keys {', '.join(_KEYS)}")
    keys = ", ".join(sorted(map(str, value))[:8])
    raise BadRecord(f"unknown form: it has the keys {keys}; expected one of {', '.join(_KEYS)}")


def _text(value: dict, key: str, *, needed: bool = True) -> str:
    found = value.get(key)
    if found is None and not needed:
        return ""
    if not isinstance(found, str):
        what = "is missing" if key not in value else f"must be a string, not {type(found).__name__}"
        raise BadRecord(f"{key} {what}")
    _check_unicode(found, key)
    return found


def _check_unicode(text: str, key: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRecord(f"{key} holds half of a surrogate pair at character {error.start}") from None


def text_of(value: dict) -> str:
    return _text(value, "text")


def messages_of(value: dict, form: str) -> list[dict]:
    """A conversation as [{"role", "content"}, ...] with at least one assistant turn, its turns in an order that makes sense."""
    make = {"messages": _from_messages, "sharegpt": _from_sharegpt, "alpaca": _from_alpaca}[form]
    messages, names = make(value)
    if not any(message["role"] == "assistant" for message in messages):
        raise BadRecord("no assistant turn, so there is nothing to learn")
    if not any(message["content"].strip() or message.get("tool_calls") for message in messages):
        raise BadRecord("every turn is empty")
    _check_order([message["role"] for message in messages], names)
    return messages


def _check_order(roles: list[str], names: list[str]) -> None:
    """Opening turns; then users and answers in turn, where each answer may be followed by results of its calls. `names` are
    the turns' names in the record."""
    before = None
    for role, name in zip(roles, names, strict=True):
        if role in _OPENING_ROLES:
            right = before in (None, *_OPENING_ROLES) or f"{role} opens a conversation"
        elif role == "user":
            right = before != "user" or "it follows a user turn"
        elif role == "assistant":
            right = before in ("user", *_RESULT_ROLES) or (
                "it follows an assistant turn" if before == "assistant" else "no turn of a user comes before it"
            )
        else:
            right = before in ("assistant", *_RESULT_ROLES) or "no assistant turn comes before it"
        if right is not True:
            raise BadRecord(f"{name} is a turn of {role} out of order: {right}")
        before = role


def _from_messages(value: dict) -> tuple[list[dict], list[str]]:
    turns = value.get("messages")
    if not isinstance(turns, list) or not turns:
        raise BadRecord("messages must be a list of {role, content} that is not empty")
    messages = []
    for number, turn in enumerate(turns):
        if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
            raise BadRecord(f"messages[{number}] must be an object with role and content")
        if turn["role"] not in _ROLES:
            raise BadRecord(f"messages[{number}].role is {turn['role']!r}; known are {', '.join(_ROLES)}")
        content = turn.get("content")
        if isinstance(content, list):  # parts, as multi-modal chats have them
            if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
                raise BadRecord(f"messages[{number}].content has a part that is not text")
            content = "".join(part["text"] for part in content)
        if content is None and turn.get("tool_calls"):
            content = ""
        if not isinstance(content, str):
            raise BadRecord(f"messages[{number}].content must be a string, not {type(content).__name__}")
        _check_unicode(content, f"messages[{number}].content")
        messages.append({**turn, "content": content})
    return messages, [f"messages[{number}]" for number in range(len(messages))]


def _from_sharegpt(value: dict) -> tuple[list[dict], list[str]]:
    turns = value.get("conversations")
    if not isinstance(turns, list) or not turns:
        raise BadRecord("conversations must be a list of {from, value} that is not empty")
    system = _text(value, "system", needed=False)
    messages = [{"role": "system", "content": system}] if system else []
    names = ["system"] * len(messages)
    for number, turn in enumerate(turns):
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            raise BadRecord(f"conversations[{number}] must be an object with the strings from and value")
        speaker = turn.get("from")
        role = _SHAREGPT_ROLES.get(speaker) if isinstance(speaker, str) else None
        if role is None:
            raise BadRecord(f"conversations[{number}].from is {speaker!r}; known are {', '.join(_SHAREGPT_ROLES)}")
        _check_unicode(turn["value"], f"conversations[{number}].value")
        messages.append({"role": role, "content": turn["value"]})
        names.append(f"conversations[{number}]")
    return messages, names


def _from_alpaca(value: dict) -> tuple[list[dict], list[str]]:
    instruction = _text(value, "instruction")
    extra = _text(value, "input", needed=False)
    output = _text(value, "output")
    system = _text(value, "system", needed=False)
    messages = [{"role": "system", "content": system}] if system else []
    history = value.get("history") or []
    if not isinstance(history, list):
        raise BadRecord("history must be a list of [question, answer] pairs")
    for number, pair in enumerate(history):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise BadRecord(f"history[{number}] must be a pair of strings")
        for text in pair:
            _check_unicode(text, f"history[{number}]")
        messages += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    question = f"{instruction}\n{extra}" if instruction and extra else instruction or extra
    messages += [{"role": "user", "content": question}, {"role": "assistant", "content": output}]
    return messages, ["the record"] * len(messages)  # in order by its making


def _integers(value: dict, key: str, length: int | None) -> list[int]:
    found = value[key]
    if not isinstance(found, list) or not all(isinstance(item, int) and not isinstance(item, bool) for item in found):
        raise BadRecord(f"{key} must be a list of integers")
    if length is not None and len(found) != length:
        raise BadRecord(f"{key} has {len(found)} entries, but input_ids has {length}")
    return found


def tokens_of(value: dict, vocabulary: int, *, everything: bool = False) -> Tokens:
    """As in transformers: labels are aligned with input_ids (the shift is the trainer's), -100 is ignored, and positions
    that attention_mask hides are padding. vocabulary 0: ids have no known bound."""
    if "input_ids" not in value:
        raise BadRecord("input_ids is missing")
    ids = _integers(value, "input_ids", None)
    limit = vocabulary or 2**31
    for position, token in enumerate(ids):
        if not 0 <= token < limit:
            bound = f"the vocabulary has {vocabulary}" if vocabulary else "ids are below 2147483648"
            raise BadRecord(f"input_ids[{position}] is {token}, but {bound}")
    supervised = [True] * len(ids)
    if value.get("labels") is not None and not everything:
        labels = _integers(value, "labels", len(ids))
        for position, label in enumerate(labels):
            if label not in (IGNORED_LABEL, ids[position]):
                raise BadRecord(
                    f"labels[{position}] is {label}, but input_ids[{position}] is {ids[position]}: "
                    "labels must be -100 or the same token"
                )
            supervised[position] = label != IGNORED_LABEL
    if value.get("attention_mask") is not None:
        seen = _integers(value, "attention_mask", len(ids))
        kept = [position for position, bit in enumerate(seen) if bit != 0]
        if kept and kept != list(range(kept[0], kept[-1] + 1)):
            raise BadRecord("attention_mask hides tokens in the middle of the sample; only padding at its ends is known")
        ids = [ids[position] for position in kept]
        supervised = [supervised[position] for position in kept]
    return Tokens(ids, supervised)
