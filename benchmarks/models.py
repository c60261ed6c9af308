"""The models that benchmarks run: the default target in float32, and a shortened copy of it as an assistant."""

from __future__ import annotations

from functools import cache

from runtime.distillation.prompts import make_prompts, read_text
from runtime.targets import MlxTarget, load_target
from runtime.workloads import WorkItem, encode, load_embedded

MADE = 4000
"""Prompts to take some of a class from."""


def load_float32() -> MlxTarget:
    """The default target with float32 weights."""
    return load_target(dtype="float32")


def shorten(target: MlxTarget, layers: int) -> MlxTarget:
    """A model of the first `layers` layers of `target`, sharing its weights: an assistant that is often right."""
    from dataclasses import replace

    from mlx_lm.models.llama import Model

    model = Model(replace(target.model.args, num_hidden_layers=layers, layer_types=None))
    model.model.embed_tokens = target.model.model.embed_tokens
    model.model.layers = target.model.model.layers[:layers]
    model.model.norm = target.model.model.norm
    return MlxTarget(f"first {layers} layers", model, target.tokenizer)


def take_prompts(target: MlxTarget, class_: str, n: int) -> list[list[int]]:
    """The first `n` prompts of a class of the embedded workload, tokenised."""
    items = [item for item in load_embedded().items if item.class_ == class_]
    return [encode(item, target) for item in items[:n]]


def take_others(target: MlxTarget, class_: str, n: int) -> list[list[int]]:
    """`n` prompts of the same class, tokenised, that are neither embedded nor among those drafters are trained on.

    Those made of documents that drafters are not trained on come first; the topics of free writing are all theirs.
    Raises ValueError if there are fewer.
    """
    items = [item for item in _make_others() if item.class_ == class_][:n]
    if len(items) < n:
        raise ValueError(f"there are {len(items)} other prompts of the class {class_}, fewer than {n}")
    return [encode(item, target) for item in items]


@cache
def _make_others() -> list[WorkItem]:
    trained, _ = make_prompts()
    texts, documents = {read_text(each.item) for each in trained}, {each.document for each in trained}
    others = [each for each in make_prompts(MADE, seed=1)[0] if read_text(each.item) not in texts]
    return [each.item for each in sorted(others, key=lambda each: each.document in documents)]
