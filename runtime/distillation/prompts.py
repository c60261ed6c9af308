"""The built-in training prompts: the everyday tasks of the embedded workload, about other things in other words.

They are made of word lists written for this package (the folder `words`) and of Python's own library text. The same
seed and the same version of Python give the same prompts. None shares a run of words with the embedded workload
(`overlap`): one that does is left out and counted.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from runtime.distillation.library_text import read_functions, read_paragraphs
from runtime.distillation.overlap import Overlap
from runtime.workloads import WorkItem, load_embedded, load_prompts
from telemetry.errors import UsageError

N_BUILT_IN = 4000
SHARES = {
    "free-writing": 40,
    "question": 10,
    "list": 10,
    "summarise": 9,
    "answer": 8,
    "translate": 7,
    "extract-json": 6,
    "code-edit": 6,
    "copy-edit": 4,
}
"""How many prompts in a hundred are of each class: half are those where nothing can be copied from the prompt."""

N_FILLED = 60
"""Passages made from one scenario."""

CODE_TASKS = (
    "Explain what this function does.\n\n{code}",
    "Write a docstring for this function and show all of it.\n\n{code}",
    "Add comments to this code:\n\n{code}",
    "Rename the function `{name}` to `{new}`. Give the whole function.\n\n{code}",
    "Annotate the parameters of this function with types.\n\n{code}",
    "Rewrite this function so that it is easier to read.\n\n{code}",
    "Write a unit test for the following function.\n\n{code}",
)
REPLACEMENTS = ("river", "evening", "Alexander", "station", "green", "important", "seven", "garden", "always", "letter")
_SLOT = re.compile(r"\{(\w+)\}")
_TRIES = 50


@dataclass(frozen=True, slots=True)
class TrainingPrompt:
    """One prompt to write on. `document`: what it was made from; its split is the document's."""

    document: str
    item: WorkItem


def make_prompts(n: int = N_BUILT_IN, seed: int = 0) -> tuple[list[TrainingPrompt], int]:
    """`n` different built-in prompts, and how many were left out for what they share with the embedded workload.

    The first k are a fair sample of all. Raises UsageError where the word lists do not hold that many.
    """
    rng = random.Random(f"prompts {seed}")
    found: list[tuple[str, str, str]] = []
    seen: set[str] = set()
    classes, weights = list(SHARES), list(SHARES.values())
    while len(found) < n:
        for _ in range(_TRIES):
            class_ = rng.choices(classes, weights)[0]
            document, text = _MAKERS[class_](class_, rng)
            if text not in seen:
                break
        else:
            raise UsageError(f"the built-in word lists do not hold {n} different prompts: ask for fewer")
        seen.add(text)
        found.append((document, class_, text))
    made = [TrainingPrompt(d, WorkItem(f"{c}-{i}", c, t)) for i, (d, c, t) in enumerate(found)]
    return refuse_overlaps(made)


def load_training_prompts(path: str) -> tuple[list[TrainingPrompt], int]:
    """The prompts of a user's file, each a document of its own, and how many were left out as by `make_prompts`.

    Raises UsageError for what `load_prompts` refuses, and if none are left.
    """
    kept, n_refused = refuse_overlaps([TrainingPrompt(f"file:{item.id}", item) for item in load_prompts(path).items])
    if not kept:
        raise UsageError(f"{path}: every prompt shares text with the embedded workload, which drafters are measured on")
    return kept, n_refused


def refuse_overlaps(prompts: Sequence[TrainingPrompt]) -> tuple[list[TrainingPrompt], int]:
    """`prompts` without those that share a run of words with the embedded workload, and how many those were."""
    overlap = Overlap(read_text(item) for item in load_embedded().items)
    kept = [prompt for prompt in prompts if overlap.find(read_text(prompt.item)) is None]
    return kept, len(prompts) - len(kept)


def read_text(item: WorkItem) -> str:
    """The text of `item`, of all its messages."""
    return item.content if isinstance(item.content, str) else "\n".join(part.content for part in item.content)


def digest_prompts(prompts: Sequence[TrainingPrompt]) -> str:
    """SHA-256 (hex) over documents, ids, classes and contents in order."""
    return hashlib.sha256(msgspec.json.encode([(p.document, p.item) for p in prompts])).hexdigest()


@cache
def _read_words(name: str) -> Any:
    return msgspec.json.decode(files(__package__).joinpath("words", f"{name}.json").read_bytes())


def _fill(form: str, words: Any, rng: random.Random) -> tuple[str, str]:
    """`form` with every slot filled anew, and what went into the first one."""
    filled: list[str] = []

    def choose(match: re.Match[str]) -> str:
        filled.append(rng.choice(words[match[1]]))
        return filled[-1]

    return _SLOT.sub(choose, form), filled[0]


def _make_writing(class_: str, rng: random.Random) -> tuple[str, str]:
    words = _read_words("writing")
    form = rng.choice(words["question-form" if class_ == "question" else class_])
    slots = _SLOT.findall(form)
    # What the text is about settles the split, not the season or the mood.
    about = min(slots, key=lambda slot: {"place": 1, "time": 2, "feeling": 3}.get(slot, 0))
    subject = rng.choice(words[about])
    text, _ = _fill(form, {**words, about: [subject]}, rng)
    return f"{about}:{subject}", text


def _make_list(class_: str, rng: random.Random) -> tuple[str, str]:
    return _make_on_text("list-text", rng) if rng.random() < 0.3 else _make_writing("list", rng)


def _choose_passage(rng: random.Random) -> tuple[str, str, dict[str, Any]]:
    """A passage with its document, and the scenario it was made from."""
    words = _read_words("passages")
    scenario, number = rng.choice(words["scenario"]), rng.randrange(N_FILLED)
    document = f"passage:{scenario['id']}:{number}"
    return document, _fill(scenario["text"], words, random.Random(document))[0], scenario


def _make_on_text(class_: str, rng: random.Random) -> tuple[str, str]:
    form = rng.choice(_read_words("passages")[class_])
    if class_ in ("summarise", "list-text", "copy-edit") and rng.random() < 0.3:
        document, text = rng.choice(read_paragraphs())
        scenario: dict[str, Any] = {}
    else:
        document, text, scenario = _choose_passage(rng)
    filling = {"text": text}
    if scenario:
        filling["ask"] = rng.choice(scenario["asks"])
        filling["keys"] = ", ".join(rng.sample(scenario["keys"], 4))
    filling["old"] = rng.choice(sorted({word for word in text.split() if len(word) > 3 and word.isalpha()}))
    filling["new"] = rng.choice(REPLACEMENTS)
    return document, form.format(**filling)


def _make_translation(class_: str, rng: random.Random) -> tuple[str, str]:
    words = _read_words("translation")
    languages = [name for name in words if name[0].isupper() and name != "English"]
    language, back = rng.choice(languages), rng.random() < 0.4
    source = "English" if back else language
    text = " ".join(rng.sample(words[source], rng.randint(2, 4)))
    form = rng.choice(words["out-of" if back else "into"])
    return f"translation:{source}:{text}", form.format(text=text, language=language)


def _make_code(class_: str, rng: random.Random) -> tuple[str, str]:
    document, code = rng.choice(read_functions())
    filling = {
        "code": f"```python\n{code}\n```",
        "name": document.rsplit(".", 1)[1],
        "new": rng.choice(("compute", "run_step", "handle", "build_result", "process_all")),
    }
    return document, rng.choice(CODE_TASKS).format(**filling)


_MAKERS: dict[str, Callable[[str, random.Random], tuple[str, str]]] = {
    "free-writing": _make_writing,
    "question": _make_writing,
    "summarise": _make_on_text,
    "answer": _make_on_text,
    "extract-json": _make_on_text,
    "copy-edit": _make_on_text,
    "list": _make_list,
    "translate": _make_translation,
    "code-edit": _make_code,
}
