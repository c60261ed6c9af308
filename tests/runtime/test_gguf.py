"""GGUF files by path: what is read means what the format says, and what would not be read right is refused by name."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest

from runtime.generate import decode, speculate
from runtime.gguf import read_gguf
from runtime.gguf.tokenizer import SPLITTINGS, read_tokenizer
from runtime.targets import load_target
from telemetry.errors import RoundscopeError, Unsupported
from tests.runtime import gguf_files
from tests.runtime.gguf_files import dequantise, llama_metadata, llama_tensors, write


def write_llama(folder: Path, kind: str = "F16", *, tied: bool = True, **changes: object) -> Path:
    return write(folder / "small.gguf", llama_metadata(**changes), llama_tensors(kind, tied=tied))


# What is read


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q6_K"])
def test_weights_are_what_the_format_says(tmp_path, kind, tied):
    """Every matrix, against an independent reading of the same bytes, within the rounding of float16 scales."""
    import mlx.core as mx
    import numpy as np

    target = load_target(write_llama(tmp_path, kind, tied=tied), dtype="float32")
    weights = dict(target.model.parameters()["model"]["layers"][0]["self_attn"])
    read = {
        "token_embd.weight": target.model.model.embed_tokens.weight,
        "blk.0.attn_q.weight": weights["q_proj"]["weight"],
        "blk.0.attn_v.weight": weights["v_proj"]["weight"],
        "blk.0.ffn_down.weight": target.model.model.layers[0].mlp.down_proj.weight,
    }
    if not tied:
        read["output.weight"] = target.model.lm_head.weight
    for name, array in read.items():
        expected = dequantise(*llama_tensors(kind, tied=tied)[name])
        exact = kind in ("F32", "F16")
        assert np.allclose(np.array(array), expected, rtol=0 if exact else 2e-3, atol=0 if exact else 2e-3), name
        assert not exact or mx.array_equal(array, mx.array(expected))
    assert (target.name, target.max_positions, sorted(target.eos)) == ("small", 64, [1])


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("F32", "float32"), ("F16", "float16"), ("Q4_0", "4-bit"), ("Q8_0", "8-bit"), ("Q6_K", "float16")],
)
def test_weights_stay_as_they_are_in_the_file(tmp_path, kind, dtype):
    from runtime.weights import describe_weights

    assert describe_weights(read_gguf(write_llama(tmp_path, kind)).model) == dtype


def test_bfloat16_is_said_to_become_float16(tmp_path, capsys):
    read_gguf(write_llama(tmp_path, "BF16"))
    said = capsys.readouterr().err
    assert "gguf.bfloat16" in said
    assert "MLX reads them as float16" in said


def test_a_file_can_be_generated_from_and_speculated_with(tmp_path):
    target = load_target(str(write_llama(tmp_path, "Q8_0", tied=False)), dtype="float32")
    ordinary = decode(target, "hello hello", max_tokens=12).drain().tokens
    assert speculate(target, "prompt-lookup", "hello hello", draft_length=4, max_tokens=12).drain().tokens == ordinary


# Tokenizers


def tokenizer_of(**changes: object):
    return read_tokenizer(llama_metadata(**changes))


def pieces(text: str, name: str) -> list[str]:
    """How the pre-tokenizer called `name` splits `text`."""
    core = tokenizer_of(tokenizer__ggml__pre=name)._tokenizer.backend_tokenizer
    return [
        piece.replace("\u0120", " ").replace("\u010a", "\n") for piece, _ in core.pre_tokenizer.pre_tokenize_str(text)
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["It", "'s", " 12345", " o", "'", "CLOCK", "!!", "\n\n", " x"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", "5", " o", "'", "CLOCK", "!!", "\n\n", " x"]),
        ("llama-bpe", ["It", "'s", " ", "123", "45", " o", "'CLOCK", "!!\n\n", " x"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", "5", " o", "'CLOCK", "!!\n\n", " x"]),
    ],
)
def test_text_is_split_as_the_named_pre_tokenizer_does(name, expected):
    assert pieces("It's 12345 o'CLOCK!!\n\n x", name) == expected
    assert set(SPLITTINGS) == {"gpt-2", "smollm", "llama-bpe", "qwen2"}


def test_merges_special_tokens_and_ends_come_from_the_metadata():
    tokenizer = tokenizer_of(tokenizer__ggml__eot_token_id=2)
    tokens = llama_metadata()["tokenizer.ggml.tokens"]
    ids = tokenizer.encode("hello</s><tool>")
    assert [tokens[index] for index in ids] == ["hell", "o", "</s>", "<tool>"]
    assert tokenizer.decode(ids) == "hello</s><tool>"
    assert tokenizer.eos_token_ids == {1, 2}
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({"tokenizer__ggml__pre": "gpt-2"}, False),
        ({"tokenizer__ggml__pre": "gpt-2", "tokenizer__ggml__add_bos_token": True}, True),
        ({"tokenizer__ggml__pre": "llama-bpe"}, True),
        ({"tokenizer__ggml__pre": "llama-bpe", "tokenizer__ggml__add_bos_token": False}, False),
    ],
)
def test_texts_begin_with_the_beginning_token_where_the_file_says_so(changes, begins):
    assert (tokenizer_of(**changes).encode("a")[0] == 0) is begins


def test_whole_words_need_no_merges_where_the_pre_tokenizer_says_so():
    for name, count in (("llama-bpe", 1), ("gpt-2", 2)):
        ids = tokenizer_of(tokenizer__ggml__pre=name, tokenizer__ggml__add_bos_token=False).encode(" hell")
        assert len(ids) == count


def test_stretched_rotations_are_those_of_llama_3(tmp_path):
    """Held against mlx-lm's own scaling; the factors are worked out here by the published rule, as a converter does."""
    from dataclasses import replace

    import mlx.core as mx
    import numpy as np
    from mlx_lm.models.llama import Model

    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    dims = gguf_files.HIDDEN // gguf_files.HEADS
    waves = 2 * np.pi * 10000.0 ** (np.arange(0, dims, 2) / dims)
    smooth = (64 / waves - 1) / 3
    factors = np.where(waves < 16, 1, np.where(waves > 64, 8, 1 / ((1 - smooth) / 8 + smooth))).astype("<f4")
    assert 1 < len(set(factors)) > 2
    tensors = llama_tensors("F32") | {"rope_freqs.weight": ("F32", (dims // 2,), factors.tobytes())}
    target = load_target(write(tmp_path / "small.gguf", llama_metadata(), tensors))
    reference = Model(replace(target.model.args, rope_scaling={"rope_type": "llama3", **scaling}))
    plain = Model(target.model.args)
    for model in (reference, plain):
        model.update(target.model.parameters())
    ids = mx.array([[5, 9, 44, 7, 100, 3, 60, 61, 62, 63, 8, 8]])
    found, expected, other = (model(ids) for model in (target.model, reference, plain))
    assert mx.allclose(found, expected, rtol=0, atol=1e-4)
    assert not mx.allclose(found, other, rtol=0, atol=1e-3)


# Refusals


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("Q4_K", "MLX decodes it wrongly without an error"),
        ("Q5_0", "MLX cannot load it"),
        ("Q5_1", "MLX cannot load it"),
        ("Q3_K", "MLX cannot load it"),
        ("Q5_K", "MLX cannot load it"),
        ("MXFP4", "MLX drops such tensors without an error"),
        ("TQ1_0", "MLX drops such tensors without an error"),
    ],
)
def test_a_type_that_is_read_wrongly_is_refused_with_the_cure(tmp_path, kind, fault):
    tensors = llama_tensors("Q8_0")
    shape = tensors["blk.0.ffn_up.weight"][1]
    tensors["blk.0.ffn_up.weight"] = (kind, shape, gguf_files.random_blocks(kind, shape))
    path = write(tmp_path / "small.gguf", llama_metadata(), tensors)
    with pytest.raises(Unsupported) as caught:
        load_target(path)
    assert str(caught.value) == (
        f"small.gguf is refused: blk.0.ffn_up.weight are of type {kind}: {fault}; take the file of type Q8_0, Q4_1, "
        "Q4_0 or F16, or convert the original model with mlx_lm.convert"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general__architecture": "qwen3"}, "its architecture is 'qwen3', not 'llama': convert the original model"),
        ({"general__architecture": None}, "its architecture is None"),
        ({"tokenizer__ggml__model": "llama"}, "its tokenizer is of the kind 'llama', not the byte-level BPE 'gpt2'"),
        (
            {"tokenizer__ggml__pre": "tekken"},
            "its pre-tokenizer 'tekken' is not one of gpt-2, smollm, llama-bpe, qwen2",
        ),
        ({"tokenizer__ggml__pre": None}, "its pre-tokenizer 'default' is not one of"),
        ({"llama__rope__scaling__type": "yarn"}, r"its positions are scaled \(yarn\)"),
        ({"llama__rope__dimension_count": 32}, "only 32 of 64 dimensions of a head are rotated"),
    ],
)
def test_what_is_no_plain_llama_is_refused_with_the_cure(tmp_path, changes, message):
    with pytest.raises(Unsupported, match=f"small.gguf is refused: {message}") as caught:
        load_target(write_llama(tmp_path, **changes))
    assert "mlx_lm.convert" in str(caught.value)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("blk.0.ffn_gate_inp.weight", "it holds blk.0.ffn_gate_inp.weight, which are no plain llama's"),
        ("rope_freqs.weight", "rope_freqs.weight is not one F32 number for each pair of a head's dimensions"),
    ],
)
def test_tensors_that_would_be_ignored_are_refused(tmp_path, extra, message):
    tensors = llama_tensors("F16") | {extra: ("F32", (30,), bytes(120))}
    with pytest.raises(Unsupported, match=message):
        load_target(write(tmp_path / "small.gguf", llama_metadata(), tensors))


def test_missing_tensors_are_named(tmp_path):
    tensors = llama_tensors("F16")
    for name in ("attn_q", "attn_k", "ffn_up", "ffn_norm"):
        del tensors[f"blk.0.{name}.weight"]
    path = write(tmp_path / "small.gguf", llama_metadata(), tensors)
    with pytest.raises(RoundscopeError) as caught:
        load_target(path)
    assert str(caught.value) == (
        "small.gguf cannot be read: it lacks blk.0.attn_k.weight, blk.0.attn_q.weight, blk.0.ffn_norm.weight and 1 "
        "more, which a llama of 1 layers has; get it again, whole"
    )


@pytest.mark.parametrize("key", ["llama.context_length", "tokenizer.ggml.merges"])
def test_missing_metadata_are_named(tmp_path, key):
    with pytest.raises(RoundscopeError, match=f"small.gguf cannot be read: its metadata lack {key}"):
        load_target(write_llama(tmp_path, **{key: None}))


def test_a_tensor_of_another_shape_than_the_metadata_say_is_one_line(tmp_path):
    with pytest.raises(RoundscopeError, match=r"small.gguf does not fit its own metadata: ") as caught:
        load_target(write_llama(tmp_path, llama__feed_forward_length=512))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [0, 3, 100, 3000])
def test_a_damaged_file_is_told_apart(tmp_path, length):
    path = write_llama(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(RoundscopeError, match=r"small.gguf is no GGUF file, or is damaged") as caught:
        load_target(path)
    assert ("it is empty" if length == 0 else f"it ends at byte {length}, in the middle") in str(caught.value)
    assert str(caught.value).endswith("; name another, or get it again")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"PK\3\4" + bytes(30), r"it begins with b'PK\\x03\\x04', version 0"),
        (b"GGUF" + pack("<IQQQ", 3, 0, 1, 1) + b"k" + pack("<I", 99), "a value of unknown type 99 before byte 37"),
        (b"GGUF" + pack("<IQQQ", 3, 0, 1, 1) + b"\xff" + bytes(9), "it has a text that is not UTF-8"),
        (b"GGUF" + pack("<IQQQ", 3, 0, 1, 17) + b"general.alignment" + pack("<II", 4, 0), "it makes no sense"),
    ],
)
def test_a_header_that_cannot_be_is_told_in_words(tmp_path, content, reason):
    path = tmp_path / "small.gguf"
    path.write_bytes(content)
    with pytest.raises(RoundscopeError, match=f"is damaged: its header cannot be read \\({reason}\\)"):
        load_target(path)


def test_a_file_that_is_cut_short_names_the_first_tensor_beyond(tmp_path):
    path = write_llama(tmp_path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(RoundscopeError, match=r"is cut short: blk.0.attn_norm.weight ends at byte \d+"):
        load_target(path)


def test_lengths_from_a_damaged_header_are_not_believed(tmp_path):
    """A string of 2**60 bytes is an error, not an allocation."""
    path = tmp_path / "small.gguf"
    path.write_bytes(
        b"GGUF" + (3).to_bytes(4, "little") + (1).to_bytes(8, "little") * 2 + (2**60).to_bytes(8, "little")
    )
    with pytest.raises(RoundscopeError, match=f"a string of {2**60} bytes"):
        load_target(path)
