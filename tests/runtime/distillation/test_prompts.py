"""The built-in training prompts, and that none of them shares text with what drafters are measured on."""

from __future__ import annotations

from collections import Counter

import pytest

from runtime.distillation import prompts
from runtime.distillation.library_text import read_functions, read_paragraphs
from runtime.distillation.overlap import Overlap
from runtime.distillation.prompts import (
    SHARES,
    TrainingPrompt,
    digest_prompts,
    load_training_prompts,
    make_prompts,
    refuse_overlaps,
)
from runtime.workloads import WorkItem, load_embedded
from telemetry.errors import UsageError

PROMPTS = make_prompts(600)[0]


def plant(text):
    return TrainingPrompt("planted", WorkItem("planted", "answer", text))


def test_prompts_repeat_with_their_seed_and_differ_with_another():
    assert digest_prompts(make_prompts(100)[0]) == digest_prompts(PROMPTS[:100])
    assert digest_prompts(make_prompts(100, seed=1)[0]) != digest_prompts(PROMPTS[:100])


def test_no_two_prompts_are_alike_and_every_class_is_there():
    assert len({prompt.item.content for prompt in PROMPTS}) == len({prompt.item.id for prompt in PROMPTS}) == 600
    counts = Counter(prompt.item.class_ for prompt in PROMPTS)
    assert set(counts) == set(SHARES) >= {item.class_ for item in load_embedded().items}
    assert counts["free-writing"] > 0.25 * 600


def test_prompts_of_one_document_are_on_the_same_text():
    of_passage = [p for p in PROMPTS if p.document.startswith("passage:")]
    by_document = {}
    for prompt in of_passage:
        by_document.setdefault(prompt.document, []).append(prompt.item.content)
    shared = [texts for texts in by_document.values() if len(texts) > 1 and all("\n\n" in text for text in texts)]
    assert shared
    for first, second, *_ in shared:
        assert set(first.split()) & set(second.split())


def test_no_slot_is_left_open():
    # Braces of code and of the JSON that is asked for stay.
    written = [p for p in PROMPTS if p.item.class_ not in ("code-edit",)]
    assert not [p.item.content for p in written if "{" in p.item.content]


def test_library_text_is_prose_and_functions_that_parse():
    assert len(read_paragraphs()) > 100
    assert len(read_functions()) > 100
    assert all(passage.text.endswith(".") for passage in read_paragraphs())
    for passage in read_functions()[:50]:
        compile(passage.text, passage.document, "exec")


def test_no_built_in_prompt_shares_content_with_the_embedded_workload():
    measured = [item.content for item in load_embedded().items]
    n_words = 8
    grams = Counter(gram for text in measured for gram in {*list_grams(text, n_words)})
    content = {gram for gram, count in grams.items() if count == 1}
    assert not [p.item.id for p in PROMPTS if content & {*list_grams(p.item.content, n_words)}]


def list_grams(text, n):
    """Runs of words, found by another way than the module's: character by character."""
    words, word = [], ""
    for character in text.lower() + " ":
        if character.isalnum() or character == "_":
            word += character
        elif word:
            words.append(word)
            word = ""
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


@pytest.mark.parametrize("item", load_embedded().items, ids=lambda item: item.id)
def test_a_planted_passage_of_the_embedded_workload_is_refused(item):
    words = item.content.split()
    middle = " ".join(words[len(words) // 2 : len(words) // 2 + 24])
    kept, n_refused = refuse_overlaps([*PROMPTS[:3], plant(f"What does this mean: {middle.upper()}!")])
    assert (kept, n_refused) == (PROMPTS[:3], 1)


def test_the_wording_of_a_task_is_no_overlap_but_its_content_is():
    wording = "Use the text to answer the question in full sentences.\n\nText: The"
    assert sum(wording in item.content for item in load_embedded().items) > 1
    assert refuse_overlaps([plant(f"{wording} mayor is ill.")])[1] == 0
    # The same words are content where only one of the measured prompts has them.
    assert Overlap([wording, "something else"]).find(wording) is not None


def test_seven_words_in_a_row_are_not_yet_an_overlap():
    overlap = Overlap(["one two three four five six seven eight nine"])
    assert overlap.find("two three four five six seven eight") is None
    assert overlap.find("x TWO, three four - five six seven eight nine.") == "two three four five six seven eight nine"


def test_a_file_of_measured_prompts_alone_is_refused(tmp_path):
    path = tmp_path / "mine.txt"
    item = next(item for item in load_embedded().items if item.class_ == "free-writing")
    path.write_text(item.content + "\n")
    with pytest.raises(UsageError, match="embedded workload"):
        load_training_prompts(str(path))
    path.write_text(item.content + "\nWrite about ducks.\n")
    [kept], n_refused = load_training_prompts(str(path))
    assert (kept.document, kept.item.content, n_refused) == ("file:line-2", "Write about ducks.", 1)


def test_word_lists_that_are_too_small_say_so(monkeypatch):
    monkeypatch.setattr(prompts, "SHARES", {"list": 1})
    with pytest.raises(UsageError, match="ask for fewer"):
        make_prompts(20_000)
