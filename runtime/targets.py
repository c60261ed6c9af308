"""Targets made of mlx-lm's models: a model, its tokenizer, and what the runtime must know about them.

Importing this module imports neither mlx nor mlx_lm: both come in where a model is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.backend import prepare
from runtime.gguf import MODEL_NAME, find_default_model, read_gguf
from runtime.weights import check_dtype, count_bytes, describe_weights, settle_weights
from telemetry.errors import RoundscopeError, Unsupported, UsageError
from telemetry.logs import get_logger

if TYPE_CHECKING:
    import mlx.core as mx

__all__ = ["MlxTarget", "find_default_model", "load_target"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class MlxTarget:
    """An mlx-lm model as a `runtime.protocols.Target`, and as a `Textual` where it has a tokenizer.

    `dtype` says what the weights are now ("float32", "bfloat16", "4-bit", ...), `parameter_bytes` how many bytes
    they take, `vocab_size` the width of the logits (which may be larger than the tokenizer's vocabulary).
    """

    def __init__(self, name: str, model: Any, tokenizer: Any = None, *, eos: Iterable[int] | None = None) -> None:
        """Wrap `model` (an `nn.Module` as mlx-lm makes them) and `tokenizer` (mlx-lm's wrapper, or None).

        `eos`: the ids that end a text; None takes the tokenizer's.
        """
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        if eos is None:
            eos = tokenizer.eos_token_ids if tokenizer is not None else ()
        self.eos: frozenset[int] = frozenset(eos)
        self.vocab_size = _measure_vocabulary(model)
        self.max_positions = _find_max_positions(model)
        self.parameter_bytes = count_bytes(model)
        self.dtype = describe_weights(model)

    def make_cache(self) -> list[Any]:
        """A fresh, empty list of the cache layers that the model wants."""
        from mlx_lm.models.cache import make_prompt_cache

        return list(make_prompt_cache(self.model))

    def forward(self, ids: mx.array, cache: list[Any]) -> mx.array:
        """Logits (1, n, vocab_size) for ids (1, n), lazily; every cache layer grows by n positions."""
        logits: mx.array = self.model(ids, cache=cache)
        return logits

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` has a template to render messages with."""
        return bool(self.tokenizer is not None and self.tokenizer.has_chat_template)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` as it stands; special tokens as the tokenizer adds them."""
        return [int(token) for token in self._need_tokenizer().encode(text)]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of `messages` (role, content) rendered by the chat template, with the answer's opening.

        Raises `Unsupported` where the tokenizer has no template.
        """
        tokenizer = self._need_tokenizer()
        if not self.has_chat_template:
            raise Unsupported(f"{self.name} has no chat template: give its prompts as plain text")
        rendered = tokenizer.apply_chat_template([dict(m) for m in messages], add_generation_prompt=True)
        return [int(token) for token in rendered]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included."""
        return str(self._need_tokenizer().decode(list(ids)))

    def _need_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise Unsupported(f"{self.name} has no tokenizer: give its prompts as token ids")
        return self.tokenizer


def load_target(name_or_path: str | Path | None = None, *, dtype: str | None = None) -> MlxTarget:
    """The default model (None), a llama-family GGUF file, or what `mlx_lm.load` takes: a model folder, or a hub id
    like `owner/name`.

    `dtype`: "float32", "float16", "bfloat16", or "quantized" ("4-bit") to leave a quantised model as it is. None is
    float32 on Linux CPUs, where nothing else goes through BLAS, and the model's own type elsewhere.

    Raises UsageError for an unknown dtype or a name that is none of these, Unsupported for a GGUF file that would not
    be read right, RoundscopeError where the model is not installed, is damaged, cannot be fetched or cannot be read.
    """
    check_dtype(dtype)
    if name_or_path is None:
        return _load_gguf(find_default_model(), MODEL_NAME, dtype)
    file = Path(name_or_path).expanduser()
    if file.suffix == ".gguf" and file.is_file():
        return _load_gguf(file, file.stem, dtype)
    folder = _find_folder(name_or_path)
    prepare()
    name = str(name_or_path) if folder is None else folder.name
    model, tokenizer = _load_with_mlx_lm(str(folder or name_or_path), is_folder=folder is not None)
    stored = describe_weights(model)
    settle_weights(model, dtype, name)
    target = MlxTarget(name, model, tokenizer)
    if target.dtype != stored:
        get_logger().info("weights.converted", target=name, stored=stored, dtype=target.dtype)
    return target


def _load_gguf(path: Path, name: str, dtype: str | None) -> MlxTarget:
    prepare()
    gguf = read_gguf(path)
    settle_weights(gguf.model, dtype, name)
    return MlxTarget(name, gguf.model, gguf.tokenizer)


def _find_folder(name_or_path: str | Path) -> Path | None:
    """The model folder that is meant, or None for a hub id; UsageError if it is neither."""
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(f"{path} has no config.json: give a model folder as mlx_lm.convert writes them")
        return path.resolve()
    if path.is_file():
        raise UsageError(f"{path} is a file: give a .gguf file or the model's folder (config.json and *.safetensors)")
    if isinstance(name_or_path, str) and _HUB_ID.fullmatch(name_or_path):
        return None
    raise UsageError(f"there is no model folder {name_or_path}, and a model hub's id has the form owner/name")


def _load_with_mlx_lm(name: str, *, is_folder: bool) -> tuple[Any, Any]:
    """Model and tokenizer of a folder or hub id, unevaluated; whatever goes wrong becomes one line."""
    import mlx_lm

    try:
        model, tokenizer = mlx_lm.load(name, lazy=True)[:2]
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        if is_folder:
            raise RoundscopeError(f"the model in {name} cannot be read: {lines[0]}") from error
        raise RoundscopeError(
            f"the model {name} is neither a folder here nor to be had from the model hub ({lines[0]}): "
            "check name and network, or download it elsewhere and give its folder"
        ) from error
    return model, tokenizer


def _measure_vocabulary(model: Any) -> int:
    """The width of the logits, read off the shape of a forward that is never evaluated."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    return int(model(mx.zeros((1, 1), mx.int32), cache=make_prompt_cache(model)).shape[-1])


def _find_max_positions(model: Any) -> int | None:
    """How many positions the model's configuration declares, None where it declares none."""
    arguments = getattr(model, "args", None)
    nested = getattr(arguments, "text_config", None)
    found = getattr(arguments, "max_position_embeddings", None)
    if found is None and isinstance(nested, Mapping):
        found = nested.get("max_position_embeddings")
    return int(found) if found else None
