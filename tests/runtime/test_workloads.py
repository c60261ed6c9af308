"""The embedded prompts, users' prompt files with everything that can be wrong in them, and encoding."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from runtime.workloads import Message, WorkItem, Workload, encode, load_embedded, load_prompts
from telemetry.errors import Unsupported, UsageError
from tests.conftest import run_python

CLASSES = (
    "copy-edit",
    "summarise",
    "answer",
    "code-edit",
    "extract-json",
    "list",
    "translate",
    "free-writing",
)
QUICK = ("copy-edit", "answer", "free-writing")
KEYS = '"id", "class", and "text" or "messages"'
SCHEMA = f'the keys are {KEYS}, those of a message "role" (system, user or assistant) and "content"'


class EchoTarget:
    """Shows which way a prompt went: text as its characters, messages as roles and contents between marks."""

    def __init__(self, *, has_chat_template: bool) -> None:
        self.has_chat_template = has_chat_template

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self.encode("".join(f"<{m['role']}>{m['content']}" for m in messages))


def ids(text: str) -> list[int]:
    return [ord(c) for c in text]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read_error(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_prompts(path)
    return str(caught.value).replace(str(path), path.name)


def test_embedded_has_eight_classes_of_six() -> None:
    workload = load_embedded()
    assert workload.name == "embedded"
    assert workload.classes == CLASSES
    assert [item.id for item in workload.items] == [f"{c}-{n}" for c in CLASSES for n in range(1, 7)]
    assert Counter(item.class_ for item in workload.items) == dict.fromkeys(CLASSES, 6)


def test_embedded_prompts_are_distinct_texts_of_a_few_sentences() -> None:
    texts = [item.content for item in load_embedded().items]
    assert len(set(texts)) == 48
    words = [len(text.split()) for text in texts if isinstance(text, str)]
    assert (len(words), min(words) >= 20, max(words) <= 160) == (48, True, True)
    assert [text for text in texts if text != str(text).strip() or "\r" in text] == []


def test_copy_edits_name_a_replacement_that_can_be_made() -> None:
    pattern = re.compile(r'Replace "(.+)" with "(.+)" in this text and show the full text:\n\n(.+)', re.DOTALL)
    for item in load_embedded().items[:6]:
        found = pattern.fullmatch(str(item.content))
        assert found is not None, item.id
        old, new, passage = found.groups()
        assert (old in passage, new in passage) == (True, False), item.id


def test_quick_is_three_of_the_embedded_classes() -> None:
    quick = load_embedded(quick=True)
    assert quick.name == "embedded-quick"
    assert quick.classes == QUICK
    assert quick.items == tuple(item for item in load_embedded().items if item.class_ in QUICK)


def test_loading_prompts_imports_no_model_library() -> None:
    code = (
        "import sys\n"
        "from runtime.workloads import load_embedded\n"
        "load_embedded()\n"
        "print([m for m in ('mlx', 'mlx_lm', 'transformers', 'numpy') if m in sys.modules])"
    )
    assert run_python(code).stdout == "[]\n"


def test_digest_is_of_ids_classes_and_contents() -> None:
    items = (WorkItem("a", "x", "Hé"), WorkItem("b", "y", (Message("user", "Hi"),)))
    canonical = (
        '[{"id":"a","class_":"x","content":"Hé"},{"id":"b","class_":"y","content":[{"role":"user","content":"Hi"}]}]'
    )
    assert Workload("w", items).digest == hashlib.sha256(canonical.encode()).hexdigest()


@pytest.mark.parametrize(
    "items",
    [
        (WorkItem("b", "x", "one"), WorkItem("2", "x", "two")),
        (WorkItem("1", "z", "one"), WorkItem("2", "x", "two")),
        (WorkItem("1", "x", "One"), WorkItem("2", "x", "two")),
        (WorkItem("1", "x", (Message("user", "one"),)), WorkItem("2", "x", "two")),
        (WorkItem("2", "x", "two"), WorkItem("1", "x", "one")),
        (WorkItem("1", "x", "one"),),
    ],
    ids=["id", "class", "text", "messages", "order", "fewer"],
)
def test_any_change_of_the_prompts_changes_the_digest(items: tuple[WorkItem, ...]) -> None:
    original = Workload("w", (WorkItem("1", "x", "one"), WorkItem("2", "x", "two")))
    assert Workload("w", items).digest != original.digest
    assert Workload("renamed", original.items).digest == original.digest


def test_jsonl_takes_text_and_messages_and_fills_in_what_is_optional(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mine.jsonl",
        '{"id": "a", "class": "mail", "text": "Write to Ann."}\n'
        "\n"
        '{"text": "Hello"}\n'
        '{"class": "chat", "messages": [{"role": "system", "content": ""},'
        ' {"role": "user", "content": "Hi"}]}\n',
    )
    assert load_prompts(path) == Workload(
        "mine.jsonl",
        (
            WorkItem("a", "mail", "Write to Ann."),
            WorkItem("line-3", "default", "Hello"),
            WorkItem("line-4", "chat", (Message("system", ""), Message("user", "Hi"))),
        ),
    )


def test_classes_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    lines = [f'{{"class": "{c}", "text": "t"}}' for c in ("z", "a", "z", "m")]
    assert load_prompts(write(tmp_path / "p.jsonl", "\n".join(lines))).classes == ("z", "a", "m")


def test_byte_order_mark_crlf_and_unicode_line_separators_are_no_obstacle(tmp_path: Path) -> None:
    path = write(tmp_path / "P.JSONL", b"\xef\xbb\xbf" + '{"text": "a\u2028b"}\r\n \t\r\n{"text": "c"}\r\n'.encode())
    assert load_prompts(str(path)).items == (
        WorkItem("line-1", "default", "a\u2028b"),
        WorkItem("line-3", "default", "c"),
    )


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", f"Input data was truncated: write one JSON object a line, with {KEYS}"),
        (
            "hello",
            f"JSON is malformed: invalid character (byte 0): write one JSON object a line, with {KEYS}",
        ),
        (
            '{"text": "a"} {}',
            f"JSON is malformed: trailing characters (byte 15): write one JSON object a line, with {KEYS}",
        ),
        ('["a"]', f"Expected `object`, got `array`: {SCHEMA}"),
        ('{"prompt": "a"}', f"Object contains unknown field `prompt`: {SCHEMA}"),
        ('{"id": 7, "text": "a"}', f"Expected `str | null`, got `int` - at `$.id`: {SCHEMA}"),
        (
            '{"messages": [{"role": "bot", "content": "a"}]}',
            f"Invalid enum value 'bot' - at `$.messages[0].role`: {SCHEMA}",
        ),
        (
            '{"messages": [{"role": "user"}]}',
            f"Object missing required field `content` - at `$.messages[0]`: {SCHEMA}",
        ),
        (
            '{"messages": [{"role": "user", "content": "a", "name": "b"}]}',
            f"Object contains unknown field `name` - at `$.messages[0]`: {SCHEMA}",
        ),
        ('{"id": "a"}', 'neither of "text" and "messages" given: give one of them'),
        (
            '{"text": "a", "messages": [{"role": "user", "content": "a"}]}',
            'both of "text" and "messages" given: give one of them',
        ),
        ('{"text": " "}', '"text" is blank: write a prompt, or take the line out'),
        (
            '{"messages": []}',
            '"messages" must end with a message of role "user": that is the one the model answers',
        ),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
            '"messages" must end with a message of role "user": that is the one the model answers',
        ),
        (
            '{"messages": [{"role": "user", "content": " "}]}',
            'the last of "messages" is blank: write a prompt, or take the line out',
        ),
        (
            '{"id": "", "text": "a"}',
            "\"id\" is '': give it at least one visible character, and no line breaks",
        ),
        (
            '{"class": "a\\nb", "text": "a"}',
            "\"class\" is 'a\\nb': give it at least one visible character, and no line breaks",
        ),
        ('{"id": "ok", "text": "again"}', 'id "ok" is already taken by line 1: make ids differ'),
    ],
)
def test_a_faulty_line_is_named_with_its_cure(tmp_path: Path, line: str, fault: str) -> None:
    path = write(tmp_path / "p.jsonl", f'{{"id": "ok", "text": "a"}}\n\n{line}\n')
    assert read_error(path) == f"p.jsonl:3: {fault}"


def test_a_given_id_may_not_equal_one_made_from_a_line_number(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", '{"id": "line-2", "text": "a"}\n{"text": "b"}\n')
    assert read_error(path) == 'p.jsonl:2: id "line-2" is already taken by line 1: make ids differ'


def test_all_faults_are_told_at_once_up_to_ten(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", '{"text": ""}\n{"text": "fine"}\n' + '{"id": "x"}\n' * 11)
    expected = ['p.jsonl:1: "text" is blank: write a prompt, or take the line out']
    expected += [f'p.jsonl:{n}: neither of "text" and "messages" given: give one of them' for n in range(3, 12)]
    assert read_error(path).split("\n") == [*expected, "... and 2 more"]


def test_bytes_that_are_not_utf8_are_named_by_line(tmp_path: Path) -> None:
    path = write(tmp_path / "p.txt", b"caf\xc3\xa9\ncaf\xe9\n")
    assert read_error(path) == "p.txt:2: byte 4 of the line is not UTF-8: save the file as UTF-8"


def test_utf16_is_recognised(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", '{"text": "a"}'.encode("utf-16"))
    assert read_error(path) == "p.jsonl is UTF-16 text: save it as UTF-8"


def test_txt_is_a_prompt_a_line_in_a_class_of_the_files_name(tmp_path: Path) -> None:
    path = write(tmp_path / "letters.txt", "Write to Ann.\r\n\r\n  {not JSON}\n")
    assert load_prompts(path) == Workload(
        "letters.txt",
        (WorkItem("line-1", "letters", "Write to Ann."), WorkItem("line-3", "letters", "  {not JSON}")),
    )


@pytest.mark.parametrize("content", [b"", b"\n \r\n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", ["p.txt", "p.jsonl"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    assert read_error(write(tmp_path / name, content)) == f"{name} has no prompts: write at least one line"


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    expected = "p.csv: prompts are read from .jsonl (an object a line) or .txt (a prompt a line): rename it"
    assert read_error(write(tmp_path / "p.csv", "a")) == expected


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    cure = "check the path"
    assert read_error(tmp_path / "p.txt") == f"p.txt cannot be read (No such file or directory): {cure}"
    for name in ("p.jsonl", "p"):
        (tmp_path / name).mkdir()
        assert read_error(tmp_path / name) == f"{name} is a folder: name a .jsonl or .txt file of prompts"


def test_text_is_one_user_message_where_there_is_a_chat_template() -> None:
    item = WorkItem("a", "x", "Hi")
    assert encode(item, EchoTarget(has_chat_template=True)) == ids("<user>Hi")
    assert encode(item, EchoTarget(has_chat_template=False)) == ids("Hi")


def test_messages_are_rendered_as_they_are() -> None:
    item = WorkItem("a", "x", (Message("system", "S"), Message("user", "Hi")))
    assert encode(item, EchoTarget(has_chat_template=True)) == ids("<system>S<user>Hi")


def test_messages_need_a_chat_template() -> None:
    item = WorkItem("a", "x", (Message("user", "Hi"),))
    with pytest.raises(Unsupported) as caught:
        encode(item, EchoTarget(has_chat_template=False))
    assert str(caught.value) == (
        "prompt a is made of messages, and the target has no chat template to render them: "
        'give the prompt as "text", or take a model with a chat template'
    )
