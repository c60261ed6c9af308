"""Distilled data: what a target wrote on training prompts, for drafters that learn to foresee it.

A folder holds `manifest.json` and `examples.ndjson`; `roundscope distill` fills it, `load_examples` reads it, and
`FrequentTokens` is the part of the target's vocabulary that a small drafter speaks.
"""

from __future__ import annotations

from runtime.distillation.examples import Example, Split, choose_split, load_examples
from runtime.distillation.frequent_tokens import FrequentTokens
from runtime.distillation.manifest import Manifest, load_manifest

__all__ = [
    "Example",
    "FrequentTokens",
    "Manifest",
    "Split",
    "choose_split",
    "load_examples",
    "load_manifest",
]
