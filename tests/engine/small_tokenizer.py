"""A small byte-level BPE tokenizer, trained here on a text of several scripts, and the files that publish it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB = 420
CORPUS = [
    "The weather in Brussels is often grey, but it's the year 2024 and we'll see 31 days of sun.\n\nSo they say.",
    "def add(a, b):\n    return a + b  # 12345 + 67890\n\n\nprint(add(1, 2))\n",
    "Füße, Öl und Übermut: 3,14 Euro für 100 Gramm Käse, sagt der Bäcker.",
    "Привет, мир! Сегодня 7 ноября. Как дела?",
    "こんにちは世界。今日は12月です。猫が好き。",
    "👩‍👩‍👧 family, 🎉🎉 party, 👍🏽 yes",
]
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if loop.first and message['role'] != 'system' -%}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}"
    "{%- endif -%}"
    "{%- if message['role'] == 'critic' -%}{{ raise_exception('no critics') }}{%- endif -%}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{ '<think></think>' }}{%- endif -%}"
    "{%- endif -%}"
)


@cache
def trained(pattern: str | None = None, *, digits: bool = True) -> Tokenizer:
    """Split by ``pattern``, as published tokenizers are; None: as GPT-2 does, digits alone if ``digits``."""
    tokenizer = Tokenizer(models.BPE())
    if pattern is not None:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        parts = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    else:
        parts = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        if digits:
            parts.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def publish_tokenizer(folder: Path, *, template: str | None = CHAT_TEMPLATE) -> None:
    """Write ``tokenizer.json`` and what lies beside it."""
    trained().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"},
        "unk_token": "<|endoftext|>",
    }
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
