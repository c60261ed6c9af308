"""The manifest of distilled data: whose words they are, how they were asked for, and hashes of what came of it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from telemetry.errors import RoundscopeError, UsageError

MANIFEST = "manifest.json"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What `roundscope distill` writes beside its examples.

    target, target_digest: name of the target and SHA-256 of its parameters. tokenizer_digest: of its vocabulary by id
    and its chat template. vocab_size: the width of its logits. eos: the ids that end a text. prompts: their source;
    prompts_digest: of the prompts themselves, with ids and documents. python: the version whose library the built-in
    prompts were made from, None for a prompts file. split_rule: how documents were split. settings: what was asked for.
    files: SHA-256 by name. n_examples, n_tokens (of outputs): by split. n_refused: prompts left out because they share
    n-grams with the embedded workload. seconds: wall time of teacher generation, over all resumed parts. complete: the
    settings' number of tokens was reached, or the prompts ran out. environment: machine, libraries, BLAS and threads.
    """

    target: str
    target_digest: str
    tokenizer_digest: str
    vocab_size: int
    eos: list[int]
    prompts: str
    prompts_digest: str
    python: str | None
    split_rule: str
    settings: dict[str, int | float | str]
    files: dict[str, str]
    n_examples: dict[str, int]
    n_tokens: dict[str, int]
    n_refused: int
    seconds: float
    complete: bool
    environment: dict[str, Any] = {}

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of everything but `seconds` and `environment`: the same data have the same digest."""
        same = msgspec.structs.replace(self, seconds=0.0, environment={})
        return hashlib.sha256(msgspec.json.encode(same, order="sorted")).hexdigest()


def load_manifest(folder: str | Path, *, check: bool = True) -> Manifest:
    """The manifest in `folder`; `check`: that the files it names are the ones it was written for.

    Raises UsageError where there is none, RoundscopeError where it cannot be read or a file has changed since.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise UsageError(f"there is no {path}: run `roundscope distill --out {folder}` first")
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except msgspec.DecodeError as error:
        raise RoundscopeError(f"{path} is no manifest of distilled data: {error}") from error
    for name, digest in manifest.files.items() if check else ():
        if hash_file(path.parent / name) != digest:
            raise RoundscopeError(
                f"{path.parent / name} is not the file that {path} was written for: run `roundscope distill` again, "
                "with --resume if it was interrupted"
            )
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest` into `folder`, whole or not at all."""
    path = folder / MANIFEST
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    temporary.replace(path)


def hash_file(path: Path) -> str:
    """SHA-256 (hex) of a file; RoundscopeError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RoundscopeError(f"{path} cannot be read: {error.strerror}") from error
