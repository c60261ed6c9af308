"""Small learned drafters: random networks over part of a small target's vocabulary, and data to train them on."""

from __future__ import annotations

from runtime.distillation import FrequentTokens
from runtime.distillation.prompts import TrainingPrompt
from runtime.distillation.teacher import Settings, Teacher
from runtime.drafters.learned.network import LearnedConfig, init_network
from runtime.workloads import WorkItem
from tests.models import tiny_llama


class Letters:
    """A tokenizer of sorts: a character a token."""

    has_chat_template = False
    eos_token_ids = frozenset({7})
    chat_template = None

    def __init__(self, size=64):
        self._size = size

    def encode(self, text):
        return [ord(character) % self._size for character in text]

    def get_vocab(self):
        return {chr(64 + i): i for i in range(self._size)}


def make_target(seed=1, **options):
    return tiny_llama(seed, eos=(7,), tokenizer=Letters(), **options)


def make_config(kind, **changes):
    shape = {"vocab": 20, "width": 16, "layers": 2, "heads": 2, "ffn": 24, "block": 1 if kind == "ar" else 3}
    return LearnedConfig(kind=kind, **(shape | changes))


def make_tokens(size=20, vocab_size=64):
    """Every third id, from the top down: order and ids of subset and target differ everywhere."""
    return FrequentTokens([vocab_size - 1 - 3 * i for i in range(size)], vocab_size)


def make_network(kind, seed=0, **changes):
    return init_network(make_config(kind, **changes), seed)


def distil(folder, target, n_prompts=60, **changes):
    prompts = [TrainingPrompt(f"doc:{i}", WorkItem(f"p-{i}", f"c{i % 2}", f"{i * 37} {i}")) for i in range(n_prompts)]
    settings = Settings(tokens=10**6, max_tokens=16, sampled=0.25, batch=16, **changes)
    return Teacher(target, prompts, folder, settings).run()
