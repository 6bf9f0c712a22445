"""Model files make one tokenizer and one template for whoever reads them, and what they have wrong is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from contract.text.chat_template import ChatTemplate, ChatTemplateError, ConversationError
from contract.text.tokenizer_files import TokenizerFileError, read_tokenizer_files

USER = [{"role": "user", "content": "x"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As published, with a template that shows the special tokens."""
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, unk_token="x")).save(str(tmp_path / "tokenizer.json"))
    configure(tmp_path, chat_template="{{ bos_token }}{{ eos_token }}{{ pad_token }}")
    return tmp_path


def configure(folder: Path, **more: Any) -> None:
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None} | more
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def rendered(folder: Path) -> str:
    template = read_tokenizer_files(folder).template
    assert template is not None
    return template.render(USER)


def test_a_token_is_a_text_or_an_object_and_what_is_neither_is_no_name(folder: Path) -> None:
    assert rendered(folder) == "<s></s>"


def test_the_default_of_named_templates_is_found_and_a_file_of_its_own_wins(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "you"}, {"name": "default", "template": "kind"}]
    configure(folder, chat_template=named)
    assert rendered(folder) == "kind"
    (folder / "chat_template.jinja").write_text("world")
    assert rendered(folder) == "world"


def test_without_a_template_there_is_a_tokenizer_still(folder: Path) -> None:
    for path in (folder, folder / "tokenizer.json"):
        (folder / "tokenizer_config.json").unlink(missing_ok=True)
        files = read_tokenizer_files(path)
        assert files.template is None
        assert files.tokenizer.encode("x").ids == [0]


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("tokenizer.json", "{", "tokenizer.json: "),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: "),
        ("tokenizer_config.json", '{"x":' + "[" * 50_000, "tokenizer_config.json: "),
        ("chat_template.jinja", "{% if %}", "chat template: "),
    ],
)
def test_files_that_make_no_tokenizer_are_named_in_one_line(
    folder: Path, file: str, content: str, complaint: str
) -> None:
    (folder / file).write_text(content)
    with pytest.raises(TokenizerFileError, match=complaint) as caught:
        read_tokenizer_files(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        with pytest.raises(TokenizerFileError, match=r"there is no .*tokenizer\.json"):
            read_tokenizer_files(path)


def test_templates_find_the_names_they_expect() -> None:
    source = "{% for t in tools %}{{ t | tojson }}{% break %}{% endfor %}{{ strftime_now('%Y')[:0] }}you{{ eos_token }}"
    template = ChatTemplate(source, special_tokens={"eos_token": "</s>"})
    assert template.render([], tools=[{"name": "<ä>"}, {"name": "second"}]) == '{"name": "<ä>"}you</s>'


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ raise_exception('no\ncritics') }}", "refuses the conversation: no critics"),
        ("{{ messages + 1 }}", "refuses the conversation"),
        ("{{ 1 // 0 }}", "refuses the conversation"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses the conversation: access to attribute"),
    ],
)
def test_what_a_template_does_not_take_or_may_not_do_is_a_refusal_in_one_line(source: str, complaint: str) -> None:
    with pytest.raises(ConversationError, match=complaint) as caught:
        ChatTemplate(source, special_tokens={}).render(USER)
    assert "\n" not in str(caught.value)


def test_a_template_that_is_no_jinja_is_refused() -> None:
    with pytest.raises(ChatTemplateError, match="nope"):
        ChatTemplate("{% nope %}", special_tokens={})
