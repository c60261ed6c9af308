"""Small GGUF files, byte by byte, and what their quantised blocks mean by the format's own definitions (in numpy)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11}
TYPES |= {"Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "BF16": 30, "TQ1_0": 34, "MXFP4": 39}
BLOCKS = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q8_0": (32, 34)}
BLOCKS |= {"Q2_K": (256, 84), "Q6_K": (256, 210), "Q4_K": (256, 144), "Q5_0": (32, 22), "Q5_1": (32, 24)}
BLOCKS |= {"Q3_K": (256, 110), "Q5_K": (256, 176), "TQ1_0": (256, 54), "MXFP4": (32, 17)}

HIDDEN, LAYERS, FFN, HEADS, KV_HEADS = 256, 1, 256, 4, 2


def write(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> Path:
    """A file of `tensors`: name -> (type, shape with rows first, data)."""
    described, data = b"", b""
    for name, (kind, shape, content) in tensors.items():
        data += bytes(-len(data) % 32)
        described += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], TYPES[kind], len(data))
        data += content
    keys = b"".join(_string(key) + _typed(value) for key, value in metadata.items())
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)) + keys + described
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _typed(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    kind = 8 if isinstance(value[0], str) else 5
    body = b"".join(_string(v) if kind == 8 else struct.pack("<i", v) for v in value)
    return struct.pack("<IIQ", 9, kind, len(value)) + body


def llama_metadata(**changes: Any) -> dict[str, Any]:
    """Metadata of a small llama with a tokenizer of single bytes and a few merges; a change to None leaves one out."""
    tokens = ["<s>", "</s>", "<tool>", *_byte_characters(), "he", "ll", "hell", "\u0120hell"]
    metadata = {
        "general.architecture": "llama",
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FFN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.context_length": 64,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 4, *([1] * (len(tokens) - 3))],
        "tokenizer.ggml.merges": ["h e", "l l", "he ll"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def _byte_characters() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def llama_tensors(kind: str, *, tied: bool = True) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Every tensor of that llama, its matrices of `kind`, of random blocks."""
    vocabulary = len(llama_metadata()["tokenizer.ggml.tokens"])
    head = HIDDEN // HEADS
    shapes = {"token_embd": (vocabulary, HIDDEN)} | ({} if tied else {"output": (vocabulary, HIDDEN)})
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_q": (HIDDEN, HIDDEN),
            f"blk.{i}.attn_k": (KV_HEADS * head, HIDDEN),
            f"blk.{i}.attn_v": (KV_HEADS * head, HIDDEN),
            f"blk.{i}.attn_output": (HIDDEN, HIDDEN),
            f"blk.{i}.ffn_gate": (FFN, HIDDEN),
            f"blk.{i}.ffn_up": (FFN, HIDDEN),
            f"blk.{i}.ffn_down": (HIDDEN, FFN),
        }
    tensors = {f"{name}.weight": (kind, shape, random_blocks(kind, shape)) for name, shape in shapes.items()}
    norms = ["output_norm", *(f"blk.{i}.{name}" for i in range(LAYERS) for name in ("attn_norm", "ffn_norm"))]
    ones = np.ones(HIDDEN, np.float32).tobytes()
    return tensors | {f"{name}.weight": ("F32", (HIDDEN,), ones) for name in norms}


def random_blocks(kind: str, shape: tuple[int, ...]) -> bytes:
    """Random data of a type for that many values, its scales small."""
    count = int(np.prod(shape))
    rng = np.random.default_rng(count)
    if kind in ("F32", "F16", "BF16"):
        values = (rng.standard_normal(count) / 16).astype(np.float32)
        if kind == "BF16":
            return bytes((values.view(np.uint32) >> 16).astype("<u2").tobytes())
        return bytes(values.astype("<f4" if kind == "F32" else "<f2").tobytes())
    values_per_block, size = BLOCKS[kind]
    blocks = rng.integers(0, 256, (count // values_per_block, size), dtype=np.uint8)
    for at in {"Q4_0": [0], "Q8_0": [0], "Q4_1": [0, 2], "Q2_K": [80, 82], "Q6_K": [208]}.get(kind, []):
        scales = (rng.random(len(blocks)) / 512).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.tobytes()


def dequantise(kind: str, shape: tuple[int, ...], data: bytes) -> Floats:
    """The values of `data`, by the definition of its type."""
    if kind in ("F32", "F16"):
        return np.frombuffer(data, "<f4" if kind == "F32" else "<f2").astype(np.float32).reshape(shape)
    if kind == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    blocks = np.frombuffer(data, np.uint8).reshape(-1, BLOCKS[kind][1])
    return _DEQUANTISERS[kind](blocks).astype(np.float32).reshape(shape)


def _half(blocks: npt.NDArray[np.uint8], at: int) -> Floats:
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _nibbles(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _q4_0(blocks: npt.NDArray[np.uint8]) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: npt.NDArray[np.uint8]) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)


def _q8_0(blocks: npt.NDArray[np.uint8]) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8)


def _q2_k(blocks: npt.NDArray[np.uint8]) -> Floats:
    scales, packed = blocks[:, :16], blocks[:, 16:80].reshape(-1, 2, 1, 32)
    quants = ((packed >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3).reshape(-1, 16, 16)
    low = _half(blocks, 80)[:, :, None] * (scales & 15)[:, :, None]
    return low * quants - _half(blocks, 82)[:, :, None] * (scales >> 4)[:, :, None]


def _q6_k(blocks: npt.NDArray[np.uint8]) -> Floats:
    low, high = blocks[:, :128].reshape(-1, 2, 2, 32), blocks[:, 128:192].reshape(-1, 2, 1, 32)
    low = np.concatenate([low & 15, low >> 4], axis=2)
    high = (high >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    quants = (low | high << 4).astype(np.float32).reshape(-1, 16, 16) - 32
    return _half(blocks, 208)[:, :, None] * blocks[:, 192:208].view(np.int8)[:, :, None] * quants


_DEQUANTISERS = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q8_0": _q8_0, "Q2_K": _q2_k, "Q6_K": _q6_k}
