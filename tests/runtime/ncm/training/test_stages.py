"""What each stage learns from, and that learning it lowers the loss."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest
from mlx import nn

from runtime.ncm.model import Generator, NcmModel
from runtime.ncm.training.direct import DirectNetwork
from runtime.ncm.training.loop import Progress, Trainer
from runtime.ncm.training.recipe import Recipe, change_recipe, load_recipe
from runtime.ncm.training.stages import CodecStage, DirectStage, GeneratorStage, make_targets
from runtime.ncm.training.tasks import ProgressionTask, SudokuTask
from runtime.ncm.training.teacher import forward_levels
from telemetry.errors import UsageError
from tests.runtime.ncm.tiny import GRID, TINY, draw_conditioning, tiny_model

RECIPE = Recipe(batch=8, generator_batch=8, codec_steps=60, direct_steps=12, generator_steps=30, warm_up=5, n_grids=2)
WORLD = msgspec.structs.replace(TINY, prefix_length=1)


@pytest.fixture
def world() -> NcmModel:
    return tiny_model(base=WORLD)


@pytest.fixture(scope="module")
def sudoku() -> SudokuTask:
    return SudokuTask(RECIPE)


def learn(stage: Any) -> tuple[float, float]:
    """Mean loss over the first and the last tenth of a stage."""
    progress = Progress(stage)
    Trainer(stage, RECIPE).run(progress, lambda: None, 1000)
    losses = [loss for _, loss in progress.curve]
    tenth = max(1, len(losses) // 10)
    return sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth


def forward_last(generator: Generator, inputs: list[mx.array], conditioning: mx.array) -> list[mx.array]:
    """The teacher-forced logits after the last application."""
    n_layers = generator._n_layers
    after = forward_levels(generator, inputs, conditioning, n_layers)
    assert [level.shape[0] for level in after] == [n_layers - n_layers // 2] * len(inputs)
    return [level[-1] for level in after]


def test_every_stage_learns(world: NcmModel, sudoku: SudokuTask) -> None:
    task = ProgressionTask(7, 5, 6)
    first, last = learn(CodecStage(world.codec, task, RECIPE))
    assert last < 0.7 * first
    first, last = learn(GeneratorStage(world, task, RECIPE))
    assert last < 0.9 * first
    grid = tiny_model(base=GRID, prefix_vocab=10, vocab=10)
    first, last = learn(DirectStage(DirectNetwork(grid.config, grid.generator), sudoku, RECIPE))
    assert last < 0.95 * first


def test_the_codebook_learns_with_the_codec_and_the_codec_not_with_the_generator(world: NcmModel) -> None:
    task, before = ProgressionTask(7, 5, 6), mx.array(world.codec.codebook)
    learn(CodecStage(world.codec, task, RECIPE))
    learnt = [mx.array(world.codec.codebook), mx.array(world.codec.encode_in.weight)]
    assert not mx.allclose(before, learnt[0])
    learn(GeneratorStage(world, task, RECIPE))
    assert [mx.array_equal(world.codec.codebook, learnt[0]), mx.array_equal(world.codec.encode_in.weight, learnt[1])]


def test_targets_are_the_codecs_codes_and_the_inputs_what_it_reconstructed_before(world: NcmModel) -> None:
    outputs = mx.array(ProgressionTask(7, 5, 6).hold_out(4)[1])
    codes, inputs = make_targets(world.codec, outputs, 0.0, mx.random.key(0))
    found = world.codec.quantise(world.codec.encode(outputs))
    assert [level.tolist() for level in codes] == [level.tolist() for level in found.codes]
    assert [level.tolist() for level in inputs] == [level.tolist() for level in world.codec.make_inputs(found.partials)]


def test_after_wrong_codes_the_targets_come_nearest_from_there(world: NcmModel) -> None:
    outputs, codec = mx.array(ProgressionTask(7, 5, 6).hold_out(6)[1]), world.codec
    right, _ = make_targets(codec, outputs, 0.0, mx.random.key(0))
    codes, inputs = make_targets(codec, outputs, 1.0, mx.random.key(0))
    assert codes[0].tolist() == right[0].tolist()
    assert [level.tolist() for level in codes] != [level.tolist() for level in right]
    rest = codec.encode(outputs) - inputs[-1]
    assert codes[-1].tolist() == codec.find_nearest(rest).tolist()


@pytest.mark.parametrize("base", [WORLD, GRID], ids=["plain", "grid"])
def test_the_teacher_forced_pass_is_the_masked_one_in_values_and_gradients(base: Any) -> None:
    model = tiny_model(base=base)
    conditioning = mx.array(draw_conditioning(base, 3))
    inputs = [mx.random.normal((3, n, base.code_dim), key=mx.random.key(n)) for n in base.lengths]

    def both(generator: Generator, forward: Any) -> tuple[list[mx.array], Any]:
        def loss() -> mx.array:
            return sum((mx.square(level).mean() for level in forward(generator)), mx.array(0.0))

        return forward(generator), nn.value_and_grad(generator, loss)()[1]

    ours, our_gradients = both(model.generator, lambda g: forward_last(g, inputs, conditioning))
    masked, gradients = both(model.generator, lambda g: g.forward_levels(inputs, conditioning))
    assert all(mx.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(ours, masked, strict=True))
    weights = (our_gradients["blocks"][0]["project"]["weight"], gradients["blocks"][0]["project"]["weight"])
    assert mx.abs(weights[1]).max().item() > 0
    assert mx.allclose(*weights, rtol=1e-3, atol=1e-5)


def test_the_direct_network_is_the_generators_own_stack(sudoku: SudokuTask) -> None:
    model = tiny_model(base=GRID, prefix_vocab=10, vocab=10)
    network = DirectNetwork(model.config, model.generator)
    puzzles, solutions = (mx.array(found) for found in sudoku.draw(2, np.random.default_rng(0)))
    assert network(puzzles).shape == (2, 2, 81, 10)
    assert network(puzzles, 6).shape == (3, 2, 81, 10)
    before = mx.array(model.generator.blocks[0].project.weight)
    learn(DirectStage(network, sudoku, RECIPE))
    assert not mx.allclose(before, model.generator.blocks[0].project.weight)
    assert solutions.shape == (2, 81)


def test_the_direct_network_answers_in_the_puzzles_own_order() -> None:
    """Swapping two rows of a band of the puzzle swaps them in the answer, and nothing else."""
    model = tiny_model(base=GRID, prefix_vocab=10, vocab=10, rotary_dims=0)
    network = DirectNetwork(model.config, model.generator)
    network.head.weight = mx.random.normal(network.head.weight.shape, key=mx.random.key(1))
    puzzle = mx.random.randint(0, 10, (1, 9, 9), key=mx.random.key(2))
    order = mx.array([1, 0, *range(2, 9)])
    answers = [network(grid.reshape(1, 81))[-1].reshape(9, 9, 10) for grid in (puzzle, puzzle[:, order])]
    assert mx.allclose(answers[0][order], answers[1], rtol=0, atol=1e-5)


def test_depths_come_in_equal_parts(sudoku: SudokuTask) -> None:
    model = tiny_model(base=GRID, prefix_vocab=10, vocab=10)
    recipe = msgspec.structs.replace(RECIPE, direct_steps=6, direct_depths=(2, 3, 4))
    stage = DirectStage(DirectNetwork(model.config, model.generator), sudoku, recipe)
    depths = [stage.draw(step, np.random.default_rng(0))[2] for step in range(6)]
    assert depths == [2, 2, 3, 3, 4, 4]


def test_recipes_are_checked_and_changed() -> None:
    assert load_recipe("no such configuration") == Recipe()
    assert load_recipe("sudoku-demo").direct_steps > 0
    assert change_recipe(Recipe(), seed=5, codec_steps=None) == Recipe(seed=5)
    with pytest.raises(UsageError, match="recipe: batch must be at least 1, not 0"):
        change_recipe(Recipe(), batch=0)
    with pytest.raises(UsageError, match="recipe: trained_givens must be from 26 to 80"):
        Recipe(trained_givens=(51, 50))


@pytest.mark.parametrize("kept", [True, False])
def test_the_generator_leaves_the_prefix_alone_if_the_recipe_says_so(sudoku: SudokuTask, kept: bool) -> None:
    model = tiny_model(base=GRID, prefix_vocab=10, vocab=10, level_blocks=1)
    generator = model.generator
    parts = [generator.prefix_embedding, generator.blocks[0].ffn_in, generator.level_blocks[0].ffn_in]
    before = [mx.array(part.weight) for part in parts]
    learn(GeneratorStage(model, sudoku, msgspec.structs.replace(RECIPE, generator_steps=3, keep_prefix=kept)))
    changed = [not mx.array_equal(old, part.weight) for old, part in zip(before, parts, strict=True)]
    assert changed == [not kept, not kept, True]
