"""The policy in a vLLM engine: staged, loaded in place, and checked by a known answer on its logits.

vLLM merges and packs weights, and its in-place loading has failed silently before: a tied output head stayed that of
the policy before. So after every load the engine answers a prompt whose logits were computed from the weight bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from blake3 import blake3
from torch import Tensor

from p2prl.errors import IntegrityError, MachineError
from p2prl.models.engines.vllm.draw import DrawArguments, Draws
from p2prl.models.engines.vllm.engine import EngineOutput, VllmEngine, VllmOptions
from p2prl.models.engines.vllm.library import VLLM_ERRORS
from p2prl.models.engines.vllm.reference_logits import LogitCheck, ReferenceLogits
from p2prl.models.run_model import RunModel
from p2prl.models.sampler_port import StagedWeights, Ticket, Weights
from p2prl.models.weights.reader import WeightReader
from p2prl.protocol.digests import Digest

_PROMPT_TOKENS = 8
"""Tokens of the known prompt, spread over the vocabulary: enough for every layer to attend to something."""


_STEPS_PER_TOKEN = 2
"""Steps for each token of the longest context, after which the known prompt must be answered. It stands first in the
queue, so at worst it waits for one completion to end: a step a token, and as many again where a full cache makes vLLM
compute keys anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredWeights(StagedWeights):
    """A checked policy with its known answer."""

    logits: Tensor
    """The reference's logits (V,) after the known prompt."""


class VllmPolicy:
    """Owns the engine, and builds a new one when asked."""

    def __init__(self, run: RunModel, *, device: torch.device, dtype: str, options: VllmOptions) -> None:
        """`ConfigError` without vLLM, `MachineError` when it cannot run the model here."""
        self._run = run
        self._device = device
        self._dtype = dtype
        self._options = options
        self._reference = ReferenceLogits(run, dtype=dtype)
        self.draws = Draws()
        self.engine: VllmEngine | None = self._build()
        self.loads = 0
        """Policies loaded so far."""
        vocabulary: int = run.skeleton.config.get_text_config().vocab_size
        self._prompt = tuple(i * vocabulary // _PROMPT_TOKENS for i in range(_PROMPT_TOKENS))

    def stage(self, weights: Weights, version: int) -> AnsweredWeights:
        """See `Sampler.stage`."""
        for name, tensor in WeightReader(self._run.layout, weights):
            # A NaN would pass every later comparison and make the peer sample garbage in good faith.
            if not bool(torch.isfinite(tensor).all()):
                raise IntegrityError(f"weights of {name!r} are not all finite")
        logits = self._reference.logits(weights, self._prompt)
        answer = Digest(blake3(logits.numpy().tobytes()).digest())
        return AnsweredWeights(version=version, weights=weights, answer=answer, logits=logits)

    def load(self, staged: StagedWeights, ticket: Ticket) -> list[EngineOutput]:
        """Load a policy into the engine and check it, with a request of its own under `ticket`.

        Completions in flight go on meanwhile: their tokens are returned, and count only when the check passes.
        `IntegrityError` when it does not, `MachineError` when vLLM fails.
        """
        answered = staged if isinstance(staged, AnsweredWeights) else self.stage(staged.weights, staged.version)
        engine = self.engine = self.engine or self._build()
        self.loads += 1
        try:
            engine.load(iter(WeightReader(self._run.layout, staged.weights)))
        except VLLM_ERRORS as error:
            raise MachineError(
                f"vLLM cannot load version {staged.version}: {str(error)[:300]}",
                remedy="Join with --engine transformers.",
            ) from error
        self.draws.version = staged.version
        self.draws.watched = ticket
        arguments = DrawArguments(ticket=ticket, seed=0, temperature=1.0, first=0)
        engine.add(arguments, self._prompt, salt=self.salt, max_tokens=1, stop_ids=(), urgent=True)
        outputs = _steps_until(ticket, engine)
        logits = self.draws.answer(ticket)
        if logits is None or not self._check.accepts(logits, answered.logits):
            raise IntegrityError(f"version {staged.version} in vLLM gives other logits than its weights")
        return [output for output in outputs if output.ticket != ticket]

    @property
    def salt(self) -> str:
        """Distinguishes the prompts cached under each policy."""
        return str(self.loads)

    def sleep(self) -> None:
        """Free the device memory. Nothing may be in flight."""
        if self.engine is not None and not self.engine.sleep():
            self.close()

    def close(self) -> None:
        """Free the engine."""
        if self.engine is not None:
            self.engine.close()
        self.engine = None
        self.draws.clear()

    def _build(self) -> VllmEngine:
        self._check = LogitCheck(dtype=self._dtype)  # rounding is the engine's: another one may be less exact
        return VllmEngine(self._run, self.draws, device=self._device, dtype=self._dtype, options=self._options)


def _steps_until(ticket: Ticket, engine: VllmEngine) -> list[EngineOutput]:
    """Outputs of the steps up to the one that answers `ticket`. `MachineError` when none does in time."""
    outputs: list[EngineOutput] = []
    most = _STEPS_PER_TOKEN * engine.context
    for _ in range(most):
        made = engine.step()
        outputs += made
        if any(output.ticket == ticket for output in made):
            return outputs
    raise MachineError(
        f"vLLM has not answered the test of a new policy after {most:,} steps",
        remedy="Join with --engine transformers.",
    )
