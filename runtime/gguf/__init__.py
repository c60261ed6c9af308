"""Models in GGUF files: the default one, and llama-family files by path."""

from __future__ import annotations

from runtime.gguf.default_model import MODEL_NAME, find_default_model
from runtime.gguf.model import GgufModel, read_gguf

__all__ = ["MODEL_NAME", "GgufModel", "find_default_model", "read_gguf"]
