"""Small tokenizers made on the spot, in the manner of the families whose chat formats differ."""

import json
from pathlib import Path

TEXT = """The quick brown fox jumps over the lazy dog. How many years are 12 and 345 days? Hello there, good bye!
You are a helpful assistant. user system assistant think Answer the question, please. Yes. No. It is blue.
Whether 'tis nobler in the mind to suffer the slings and arrows of outrageous fortune, or to take arms.
"""

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Begins with the start token, trims contents.
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start|>' + m['role'] + '<|end_role|>\\n\\n' + m['content'] | trim + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant<|end_role|>\\n\\n' }}{% endif %}"
)
# No generation prompt; refuses roles that do not alternate; the system text sits in the last user turn, so that a shorter
# conversation is no beginning of the longer one.
MISTRAL = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}{{ bos_token }}"
    "{% for m in rest %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' }}"
    "{% if system and loop.index0 >= rest | length - 2 %}{{ system + '\\n\\n' }}{% endif %}{{ m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] | trim + '</s>' }}{% endif %}{% endfor %}"
)
# Adds one more end token behind the whole conversation, as some do.
PHI = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% else %}{{ eos_token }}{% endif %}"
)
# Thoughts of earlier turns are taken out.
QWEN3 = (
    "{% for m in messages %}{% set content = m['content'] %}"
    "{% if m['role'] == 'assistant' and not loop.last and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Says itself what is learnt.
GENERATION = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '<|im_start|>assistant\\n' }}"
    "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
)


def make_tokenizer(folder: Path, template: str | None = None, *, bos: str | None = None, eos: str = "<|im_end|>") -> Path:
    """A byte-level BPE of some hundred entries. With `bos`, its post-processor adds the start token, as Llama's does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "<|start|>", "<|end_role|>", "<|eot|>", "</s>", "[INST]", "[/INST]", "<|bos|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special + ([eos] if eos not in special else []),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(TEXT.splitlines(), trainer)
    if bos:
        inner.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=True),
                processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, inner.token_to_id(bos))]),
            ]
        )
    folder.mkdir(parents=True)
    inner.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos}
    if bos:
        settings["bos_token"] = bos
    if template:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_jsonl(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
