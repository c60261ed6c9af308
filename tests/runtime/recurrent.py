"""A small random model whose layers keep a recurrent state, from mlx-lm's own classes."""

from __future__ import annotations

from runtime.targets import MlxTarget


def tiny_mamba(seed: int = 3, vocab_size: int = 40) -> MlxTarget:
    """A mamba of two layers in float32; equal arguments give equal weights."""
    import mlx.core as mx
    from mlx_lm.models.mamba import Model, ModelArgs

    mx.random.seed(seed)
    arguments = ModelArgs(
        model_type="mamba",
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=32,
        state_size=4,
        num_hidden_layers=2,
        conv_kernel=4,
        use_bias=False,
        use_conv_bias=True,
        time_step_rank=2,
        tie_word_embeddings=False,
    )
    model = Model(arguments)
    mx.eval(model.parameters())
    return MlxTarget(f"tiny-mamba-{seed}", model, eos=())
