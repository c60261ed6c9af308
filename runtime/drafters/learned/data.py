"""What a drafter is trained on, and what its checkpoint says of where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from runtime.distillation import Example, FrequentTokens, Manifest, load_manifest
from runtime.distillation.examples import read_examples
from runtime.distillation.identity import digest_parameters, digest_tokenizer
from runtime.distillation.labels import Labels, label_hard, read_labels
from runtime.drafters.learned.checkpoints import TrainedFor
from runtime.environment import describe_machine
from runtime.targets import MlxTarget
from telemetry.errors import Unsupported, UsageError


@dataclass(frozen=True)
class TrainingData:
    """Distilled examples of the splits for training and for the held-out figures, and the tokens a drafter speaks.

    labels: of the outputs to train on, one for each; `is_soft`: they are the target's distributions, not its tokens.
    """

    manifest: Manifest
    train: list[Example]
    labels: list[Labels]
    is_soft: bool
    test: list[Example]
    tokens: FrequentTokens

    @property
    def temperature(self) -> float:
        """At which the target drew the answers that are not greedy."""
        return float(self.manifest.settings["temperature"])

    @property
    def can_align(self) -> bool:
        """Whether the target's distributions are known along answers that it drew."""
        return self.is_soft and any(example.temperature for example in self.train)

    def take_drawn(self) -> tuple[list[Example], list[Labels]]:
        """The answers to train on that the target drew, and its distributions there at that temperature."""
        pairs = [pair for pair in zip(self.train, self.labels, strict=True) if pair[0].temperature]
        return [example for example, _ in pairs], [labels.heat(self.temperature) for _, labels in pairs]

    @property
    def trained_for(self) -> TrainedFor:
        """The target that wrote them."""
        manifest = self.manifest
        return TrainedFor(
            target=manifest.target,
            target_digest=manifest.target_digest,
            tokenizer_digest=manifest.tokenizer_digest,
            vocab_size=manifest.vocab_size,
        )

    def describe_training(
        self, recipe: msgspec.Struct, command: str, curve: Any, figures: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What goes into a checkpoint's header, by name."""
        return {
            "recipe": msgspec.to_builtins(recipe),
            "data": msgspec.to_builtins(self.manifest),
            "data_digest": self.manifest.digest,
            "command": command,
            "curve": curve,
            "held_out": figures,
            "environment": describe_machine(),
        }


def read_data(target: MlxTarget, folder: Path, n_tokens: int) -> TrainingData:
    """The examples in `folder`, which `target` wrote, and their `n_tokens` most frequent tokens.

    Raises UsageError if there are none to train on or none held out, Unsupported if they are another target's.
    """
    manifest = load_manifest(folder)
    _check_target(manifest, target, folder)
    examples, top = list(read_examples(folder)), int(manifest.settings.get("top", 0))
    soft = read_labels(folder, examples, top) if top else [label_hard(example.output) for example in examples]
    labels = [held for example, held in zip(examples, soft, strict=True) if example.split == "train"]
    train, test = ([example for example in examples if example.split == split] for split in ("train", "test"))
    if not (train and test):
        raise UsageError(f"{folder} has {len(train)} examples to train on and {len(test)} held out: distil more")
    tokens = FrequentTokens.choose(train, n_tokens, target.vocab_size, sorted(target.eos))
    return TrainingData(manifest, train, labels, top > 0, test, tokens)


def _check_target(manifest: Manifest, target: MlxTarget, folder: Path) -> None:
    """Raise Unsupported unless it was `target`, as it is in memory, that wrote the data."""
    ours = (digest_parameters(target), digest_tokenizer(target), target.vocab_size)
    if ours != (manifest.target_digest, manifest.tokenizer_digest, manifest.vocab_size):
        raise Unsupported(
            f"the data in {folder} were written by {manifest.target}, and {target.name} is another (or the same in "
            "another precision): give the one that wrote them, or distil anew"
        )
