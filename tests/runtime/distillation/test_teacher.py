"""Teacher generation on a small random target: what it writes, how it resumes, and what the manifest says."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest

from runtime.distillation import choose_split, load_examples, load_manifest
from runtime.distillation.examples import read_examples
from runtime.distillation.prompts import TrainingPrompt, digest_prompts
from runtime.distillation.teacher import Settings, Teacher
from runtime.workloads import WorkItem
from telemetry.errors import RoundscopeError, UsageError
from tests.models import greedy, tiny_llama


class Words:
    """A tokenizer of sorts: a character a token."""

    has_chat_template = False
    eos_token_ids = frozenset({7})
    chat_template = None

    def encode(self, text):
        return [ord(character) % 64 for character in text]

    def get_vocab(self):
        return {chr(64 + i): i for i in range(64)}


TARGET = tiny_llama(1, eos=(7,), tokenizer=Words())
PROMPTS = [TrainingPrompt(f"doc:{i % 13}", WorkItem(f"p-{i}", "c", f"prompt {i * 37}")) for i in range(40)]
SETTINGS = Settings(tokens=10_000, max_tokens=12, sampled=0.5, batch=8)


def write(folder, settings=SETTINGS, prompts=PROMPTS, target=TARGET, **options):
    return Teacher(target, prompts, folder, settings).run(**options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return folder, write(folder)


def test_every_prompt_is_answered_greedily_and_a_share_once_more_at_the_temperature(whole):
    folder, _ = whole
    examples = list(read_examples(folder))
    first = {e.id.removesuffix("/0"): e for e in examples if e.id.endswith("/0")}
    assert set(first) == {prompt.item.id for prompt in PROMPTS}
    for prompt in PROMPTS:
        example = first[prompt.item.id]
        assert example.prompt == TARGET.encode(prompt.item.content)
        assert example.output == greedy(TARGET, example.prompt, 12)
        assert example.ended == (example.output[-1] == 7)
        assert (example.document, example.split) == (prompt.document, choose_split(prompt.document))
    drawn = [e for e in examples if e.id.endswith("/1")]
    assert 8 <= len(drawn) <= 32
    assert {e.temperature for e in drawn} == {0.7}
    assert len(examples) == len(first) + len(drawn)


def test_the_manifest_counts_and_hashes_what_is_there(whole):
    folder, manifest = whole
    assert load_manifest(folder) == manifest
    for split in ("train", "validation", "test"):
        examples = load_examples(folder, split)
        assert manifest.n_examples.get(split, 0) == len(examples)
        assert manifest.n_tokens.get(split, 0) == sum(len(e.output) for e in examples)
    assert manifest.files["examples.ndjson"] == sha256((folder / "examples.ndjson").read_bytes()).hexdigest()
    assert manifest.prompts_digest == digest_prompts(PROMPTS)
    assert manifest.settings == msgspec.to_builtins(SETTINGS)
    assert (manifest.target, manifest.vocab_size, manifest.eos, manifest.complete) == (TARGET.name, 64, [7], True)
    assert len({manifest.target_digest, manifest.tokenizer_digest, manifest.digest}) == 3


def test_the_same_request_writes_the_same_data_and_another_seed_others(whole, tmp_path):
    folder, manifest = whole
    again = write(tmp_path / "again")
    assert (tmp_path / "again" / "examples.ndjson").read_bytes() == (folder / "examples.ndjson").read_bytes()
    assert again.digest == manifest.digest
    assert write(tmp_path / "other", Settings(**msgspec.to_builtins(SETTINGS) | {"seed": 1})).digest != manifest.digest


@pytest.mark.parametrize("kept", [0, 1, 700, 2500, -1, -40])
def test_an_interrupted_run_goes_on_to_the_same_bytes(whole, tmp_path, kept):
    folder, manifest = whole
    content = (folder / "examples.ndjson").read_bytes()
    (tmp_path / "examples.ndjson").write_bytes(content[:kept])
    (tmp_path / "manifest.json").write_bytes((folder / "manifest.json").read_bytes())
    with pytest.raises(RoundscopeError, match="is not the file"):
        load_manifest(tmp_path)
    resumed = write(tmp_path, resume=True)
    assert (tmp_path / "examples.ndjson").read_bytes() == content
    assert resumed.digest == manifest.digest
    assert resumed.seconds >= manifest.seconds


def test_it_stops_at_the_tokens_asked_for_and_goes_on_to_more(whole, tmp_path):
    folder, manifest = whole
    few = Settings(**msgspec.to_builtins(SETTINGS) | {"tokens": 150})
    first = write(tmp_path, few)
    assert 150 <= sum(first.n_tokens.values()) < sum(manifest.n_tokens.values())
    write(tmp_path, resume=True)
    assert (tmp_path / "examples.ndjson").read_bytes() == (folder / "examples.ndjson").read_bytes()


def test_to_resume_where_nothing_is_begins(whole, tmp_path):
    assert write(tmp_path / "new", resume=True).digest == whole[1].digest


def test_data_are_never_overwritten_or_mixed(whole):
    folder, _ = whole
    with pytest.raises(UsageError, match="holds distilled data"):
        write(folder)
    for change, what in (
        ({"settings": Settings(**msgspec.to_builtins(SETTINGS) | {"max_tokens": 13})}, "settings"),
        ({"prompts": PROMPTS[:-1]}, "prompts digest"),
        ({"target": tiny_llama(2, eos=(7,), tokenizer=Words())}, "target digest"),
    ):
        with pytest.raises(UsageError, match=what):
            write(folder, resume=True, **change)


def test_a_prompt_beyond_the_targets_positions_is_refused(tmp_path):
    target = tiny_llama(1, eos=(7,), tokenizer=Words(), max_positions=20)
    with pytest.raises(UsageError, match="beyond the target's 20 positions"):
        write(tmp_path, target=target)


@pytest.mark.parametrize(
    "wrong", [{"tokens": 0}, {"max_tokens": 0}, {"batch": 0}, {"sampled": 1.5}, {"temperature": 0.0}]
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Settings(**wrong)
