"""Checkpoints of learned drafters: float16 weights as safetensors, with what they are and how they came about inside.

The header holds the configuration, the frequent tokens, the target and tokenizer they speak for, the manifest of the
data, the command, the training curve and the held-out figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runtime.distillation import FrequentTokens
from runtime.distillation.identity import digest_parameters, digest_tokenizer
from runtime.protocols import Target
from runtime.targets import MlxTarget
from runtime.tensor_files import read_tensors, write_whole
from telemetry.errors import RoundscopeError, Unsupported, UsageError

if TYPE_CHECKING:
    from runtime.drafters.learned.network import Network

FOLDER = Path(__file__).parent / "checkpoints"
SUFFIX = ".safetensors"
IDS = "frequent_tokens"


class TrainedFor(msgspec.Struct, frozen=True, kw_only=True):
    """The target whose answers a drafter learned: as in `runtime.distillation.Manifest`."""

    target: str
    target_digest: str
    tokenizer_digest: str
    vocab_size: int


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read. `header`: its texts by name."""

    path: Path
    network: Network
    tokens: FrequentTokens
    trained_for: TrainedFor
    header: Mapping[str, str]

    def check(self, target: Target) -> None:
        """Raise Unsupported, saying what differs, if `target` is not the one that the drafter learned to foresee."""
        check_trained_for(self.trained_for, target, self.network.config.kind)


def check_trained_for(ours: TrainedFor, target: Target, name: str) -> None:
    """Raise Unsupported, saying what differs, if `target` is not the one that the drafter `name` learned to foresee."""
    cure = f"train one on its own answers: roundscope distill, then roundscope train-drafter {name}"
    if target.vocab_size != ours.vocab_size:
        raise Unsupported(
            f"the drafter {name} speaks a vocabulary of {ours.vocab_size} ids ({ours.target}), and the target has "
            f"{target.vocab_size}: {cure}"
        )
    if not isinstance(target, MlxTarget):
        raise Unsupported(f"the drafter {name} was trained for {ours.target}, and the target is no model: {cure}")
    if digest_tokenizer(target) != ours.tokenizer_digest:
        raise Unsupported(
            f"the drafter {name} was trained for {ours.target}, and {target.name} has another tokenizer: {cure}"
        )
    # The same model in another precision answers nearly alike; only one of another name is worth 0.5 s of hashing.
    if target.name != ours.target and digest_parameters(target) != ours.target_digest:
        raise Unsupported(f"the drafter {name} was trained for {ours.target}, and this is {target.name}: {cure}")


def find_checkpoint(name: str, given: str | Path | None = None) -> Path:
    """The file `given`, or the one that comes with the package for the drafter `name`; UsageError if there is none."""
    path = FOLDER / f"{name}{SUFFIX}" if given is None else Path(given)
    if not path.is_file():
        raise UsageError(
            f"there is no checkpoint {path}: `roundscope train-drafter {name}` makes one, which {name}:checkpoint=FILE "
            "takes"
        )
    return path


def read_checkpoint(path: Path, kind: str) -> Checkpoint:
    """The checkpoint in `path`, in float32.

    Raises RoundscopeError where it cannot be read or is no checkpoint of a drafter, UsageError if it is one of another
    kind.
    """
    from runtime.backend import prepare

    prepare()
    import mlx.core as mx
    from mlx.utils import tree_unflatten

    from runtime.device import barrier, read
    from runtime.drafters.learned.network import LearnedConfig, Network, list_weights

    arrays, header = read_tensors(path)
    try:
        config = msgspec.json.decode(header["config"], type=LearnedConfig)
        trained_for = msgspec.json.decode(header["trained_for"], type=TrainedFor)
        ids = read(arrays.pop(IDS))[0]
    except (KeyError, msgspec.DecodeError) as error:
        raise RoundscopeError(f"{path} is no checkpoint of `roundscope train-drafter`: {error}") from error
    if config.kind != kind:
        raise UsageError(f"{path} holds the drafter {config.kind}, not {kind}")
    network = Network(config)
    if {name: array.shape for name, array in list_weights(network)} != {n: a.shape for n, a in arrays.items()}:
        raise RoundscopeError(f"the weights in {path} do not fit its configuration: get it again, whole")
    network.update(tree_unflatten([(name, array.astype(mx.float32)) for name, array in arrays.items()]))
    network.eval()
    barrier(dict(list_weights(network)))
    return Checkpoint(path, network, FrequentTokens(ids, trained_for.vocab_size), trained_for, header)


def write_checkpoint(
    path: Path, network: Network, tokens: FrequentTokens, trained_for: TrainedFor, header: Mapping[str, Any]
) -> None:
    """Write `network` in float16, whole or not at all; `header`: plain values, kept as JSON, texts as they are."""
    import mlx.core as mx

    from runtime.drafters.learned.network import list_weights

    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in header.items()}
    texts["config"] = msgspec.json.encode(network.config).decode()
    texts["trained_for"] = msgspec.json.encode(trained_for).decode()
    arrays = {name: array.astype(mx.float16) for name, array in list_weights(network)}
    arrays[IDS] = mx.array(tokens.ids)
    write_whole(path, lambda unfinished: mx.save_safetensors(unfinished, arrays, texts))
