"""The type that weights get: what is asked for, what this machine computes best, and what fits into its memory."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest

from runtime import weights
from runtime.weights import check_dtype, count_bytes, describe_weights, settle_weights
from telemetry.errors import UsageError
from tests.models import tiny_llama


@pytest.fixture(params=[True, False], ids=["linux cpu", "elsewhere"])
def on_linux_cpu(request, monkeypatch):
    monkeypatch.setattr(weights, "_on_linux_cpu", lambda: request.param)
    return request.param


@pytest.fixture
def linux_cpu(monkeypatch):
    monkeypatch.setattr(weights, "_on_linux_cpu", lambda: True)


def make_model(stored: str):
    model = tiny_llama(3).model
    if stored.endswith("-bit"):
        nn.quantize(model, group_size=32, bits=int(stored[0]))
    else:
        model.set_dtype(getattr(mx, stored))
    return model


@pytest.mark.parametrize(
    ("stored", "asked", "on_cpu", "elsewhere"),
    [
        ("float32", None, "float32", "float32"),
        ("bfloat16", None, "float32", "bfloat16"),
        ("float16", None, "float32", "float16"),
        ("4-bit", None, "float32", "4-bit"),
        ("8-bit", None, "float32", "8-bit"),
        ("4-bit", "quantized", "4-bit", "4-bit"),
        ("4-bit", "4-bit", "4-bit", "4-bit"),
        ("8-bit", "8-bit", "8-bit", "8-bit"),
        ("4-bit", "bfloat16", "bfloat16", "bfloat16"),
        ("float32", "float16", "float16", "float16"),
        ("bfloat16", "bfloat16", "bfloat16", "bfloat16"),
    ],
)
def test_weights_become_what_is_asked_for_or_what_the_machine_likes(stored, asked, on_cpu, elsewhere, on_linux_cpu):
    model = make_model(stored)
    assert describe_weights(model) == stored
    settle_weights(model, asked, "tiny")
    assert describe_weights(model) == (on_cpu if on_linux_cpu else elsewhere)


@pytest.mark.usefixtures("linux_cpu")
def test_dequantised_weights_give_the_logits_of_the_quantised_ones():
    logits = []
    for dtype in (None, "quantized"):
        model = make_model("4-bit")
        settle_weights(model, dtype, "tiny")
        logits.append(model(mx.array([[1, 2, 3]])))
    assert mx.allclose(*logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("stored", "asked"), [("float32", "4-bit"), ("bfloat16", "quantized"), ("8-bit", "4-bit")])
def test_a_model_that_is_not_quantised_so_cannot_stay_so(stored, asked):
    with pytest.raises(UsageError) as caught:
        settle_weights(make_model(stored), asked, "tiny")
    assert str(caught.value) == f"the weights of tiny are {stored}, so dtype '{asked}' cannot be had: leave dtype out"


@pytest.mark.parametrize("dtype", ["fp32", "", "int8", "9-bit", "Float32"])
def test_an_unknown_dtype_is_refused_with_the_known_ones(dtype):
    with pytest.raises(UsageError, match="take one of float32, float16, bfloat16, quantized, 4-bit"):
        check_dtype(dtype)


@pytest.mark.usefixtures("linux_cpu")
def test_weights_that_would_not_fit_into_memory_stay_as_they_are(monkeypatch, capsys):
    model = make_model("bfloat16")
    monkeypatch.setattr(weights, "_read_free_memory", lambda: 2 * count_bytes(model))
    settle_weights(model, None, "tiny")
    assert describe_weights(model) == "bfloat16"
    assert "weights.kept" in capsys.readouterr().err
    settle_weights(model, "float32", "tiny")
    assert describe_weights(model) == "float32"


def test_a_model_says_which_parameters_it_needs_as_they_are():
    model = make_model("float32")
    type(model).cast_predicate = property(lambda self: lambda path: "norm" not in path)
    try:
        settle_weights(model, "bfloat16", "tiny")
    finally:
        del type(model).cast_predicate
    assert (model.model.norm.weight.dtype, model.lm_head.weight.dtype) == (mx.float32, mx.bfloat16)


def test_bytes_are_those_of_all_parameters():
    assert count_bytes(make_model("float32")) == 2 * count_bytes(make_model("bfloat16")) == 90_752
