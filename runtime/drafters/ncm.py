"""A next-concept model as a drafter: a block of tokens in K forwards, whatever its length.

The prefix is the last P tokens of the history and attends to itself in both directions, so it is computed anew in every
round; its keys and values serve the K levels of that round alone. Nothing is read from the device.

Greedily, codes and tokens are the most probable ones. Where the target samples, `NcmSampler` draws a latent (the codes
of all levels but the last) at the start of the round, from the committed history and the latent stream at the round's
place in the output; given it, each token of the block is drawn by itself from q_z, which goes with the proposal.
Verification by any fixed q_z gives the target's distribution, so their mixture over z does too; the probability of z
itself is in no ratio. q_z lives on the frequent tokens and, where the options cut it, on fewer; it is zero elsewhere.
An end of text is a token as any other; what a block says after one is never judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runtime.drafters.base import HostDrafter
from runtime.drafters.learned.checkpoints import TrainedFor, check_trained_for
from runtime.protocols import Proposal, Target
from runtime.sampling import Sampling, draw
from telemetry.errors import Unsupported, UsageError

if TYPE_CHECKING:
    import mlx.core as mx

    from runtime.ncm.text.model import Decoder, TextModel


class NcmDrafter(HostDrafter):
    """Proposes the most probable tokens given the most probable codes: a point mass, at any temperature."""

    name = "ncm"

    def __init__(
        self, model: TextModel, decoder: Decoder = "context", *, trained_for: TrainedFor | None = None
    ) -> None:
        """decoder: as in `runtime.ncm.text.model.predict_block`. trained_for: the only target that it may draft for;
        None: any with logits of that width.
        """
        import mlx.core as mx

        super().__init__()
        self.model, self.decoder = model, decoder
        self._ids = mx.array(model.tokens.ids)
        self._trained_for = trained_for
        self._checked: Target | None = None

    @property
    def block(self) -> int:
        """The most tokens that it proposes at once."""
        return self.model.config.output_length

    def check(self, target: Target) -> None:
        """Raise Unsupported if the model was trained for another target or tokenizer."""
        ours = self.model.tokens.vocab_size
        if self._trained_for is not None and self._checked is not target:
            check_trained_for(self._trained_for, target, self.name)
            self._checked = target
        elif target.vocab_size != ours:
            raise Unsupported(
                f"the drafter {self.name} speaks a vocabulary of {ours} ids, and the target has {target.vocab_size}: "
                "train one on its own answers"
            )

    def reset(self, prompt: Sequence[int]) -> None:
        """Start over with `prompt`; what the weights are is looked at here, so that no round has to."""
        super().reset(prompt)
        self.model.state()

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """The beginning of a block, as one lazy array; no more than a block."""
        m = min(m, self.block)
        return Proposal(()) if m == 0 else self._propose(history, m)

    def _propose(self, history: Sequence[int], m: int) -> Proposal:
        import mlx.core as mx

        from runtime.ncm.text.model import predict_block, take_likeliest

        logits = predict_block(self.model, [self.model.take_window(history)], m, take_likeliest, self.decoder)
        tokens = self._ids[mx.argmax(logits[0], axis=-1)]
        mx.async_eval(tokens)
        return Proposal(tokens)


class NcmSampler(NcmDrafter):
    """The same, but where the target samples it draws too: a latent, and tokens from q_z."""

    def __init__(
        self,
        model: TextModel,
        decoder: Decoder = "context",
        latent_temperature: float | None = None,
        *,
        trained_for: TrainedFor | None = None,
    ) -> None:
        """latent_temperature: of the codes; 0: the most probable ones; None: the target's temperature.

        UsageError for what is no temperature.
        """
        from runtime.ncm.temperature import MEANT, is_temperature

        super().__init__(model, decoder, trained_for=trained_for)
        if latent_temperature is not None and not is_temperature(latent_temperature):
            raise UsageError(f"latent_temperature must be {MEANT}, not {latent_temperature}")
        self._latent_temperature = latent_temperature
        self._sampling: Sampling | None = None
        self._prompt_length = 0

    def sample_with(self, sampling: Sampling | None) -> None:
        """As in SamplingDrafter."""
        self._sampling = sampling

    def reset(self, prompt: Sequence[int]) -> None:
        """Start over with `prompt`: what is drawn belongs to a place in the output."""
        super().reset(prompt)
        self._prompt_length = len(prompt)

    def _propose(self, history: Sequence[int], m: int) -> Proposal:
        sampling = self._sampling
        if sampling is None:
            return super()._propose(history, m)
        import mlx.core as mx

        position = len(history) - self._prompt_length
        q = sampling.distribution(self.condition(history, m, position, sampling))
        keys = sampling.keys("drafter", range(position, position + m))
        drawn = mx.concatenate([draw(q[j : j + 1], keys[j]) for j in range(m)])
        tokens, wide = self._ids[drawn], self.model.tokens.widen(q)
        mx.async_eval(tokens, wide)
        return Proposal(tokens, wide)

    def condition(self, history: Sequence[int], m: int, position: int, sampling: Sampling) -> mx.array:
        """Logits (m, size) of q_z, for the latent drawn at `position` of the output, where the round starts."""
        import mlx.core as mx

        from runtime.ncm.sampling import choose_codes
        from runtime.ncm.text.model import predict_block

        temperature = sampling.temperature if self._latent_temperature is None else self._latent_temperature
        keys = mx.random.split(sampling.keys("latent", [position])[0], self.model.config.n_levels)

        def choose(level: int, logits: mx.array) -> mx.array:
            return choose_codes(logits, temperature, keys[level : level + 1])

        return predict_block(self.model, [self.model.take_window(history)], m, choose, self.decoder)[0]
