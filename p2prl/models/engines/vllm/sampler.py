"""The sampler on vLLM: paged memory and continuous batching, for GPUs above all.

The run's seeded draw replaces vLLM's (`p2prl/models/engines/vllm/draw.py`), so its completions replay like those of any
other engine. A policy is loaded into the running engine between two steps. Completions in flight keep their keys and
values, as with the transformers sampler; a prompt that no token was drawn from yet is computed again, and cached
prompts are never shared between policies.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from p2prl.errors import ConfigError, IntegrityError, MachineError
from p2prl.models.engines.sampled_completion import SampledCompletion
from p2prl.models.engines.vllm.draw import DrawArguments, DrawnToken
from p2prl.models.engines.vllm.engine import EngineOutput, VllmEngine, VllmOptions
from p2prl.models.engines.vllm.library import import_vllm, require_exact_products
from p2prl.models.engines.vllm.policy import VllmPolicy
from p2prl.models.hardware.device_choice import device_class, use_exact_arithmetic
from p2prl.models.run_model import RunModel
from p2prl.models.sampler_port import GenerationRequest, StagedWeights, StepResult, Ticket, Weights
from p2prl.models.seeded_draw.draw import check_draw
from p2prl.protocol.rollout_group import EngineClass


@dataclass(slots=True)
class _Row(SampledCompletion):
    """One completion being sampled."""

    in_engine: bool = False

    def ends_with(self, drawn: Sequence[DrawnToken]) -> bool:
        """Whether the last of these further tokens is the last of all."""
        is_full = len(self.token_ids) + len(drawn) == self.request.max_new_tokens
        return is_full or (bool(drawn) and drawn[-1].token in self.request.stop_ids)


def build_sampler(run: RunModel, *, device: torch.device, dtype: str, memory_bytes: int | None = None) -> VllmSampler:
    """The sampler of a run: see `SamplerBuilder`. `memory_bytes` bounds weights, activations and cache.

    `MachineError` for a run of adapters: merged with the weights they would be rounded, and other tokens be drawn than
    those that a replay draws.
    """
    if run.lora is not None:
        raise MachineError("vLLM does not sample for runs of adapters yet", remedy="Use --engine transformers.")
    return VllmSampler(run, device=device, dtype=dtype, options=VllmOptions(memory_bytes=memory_bytes))


class VllmSampler:
    """A `Sampler` with one vLLM engine, which is rebuilt once when a policy in it fails its check."""

    def __init__(self, run: RunModel, *, device: torch.device, dtype: str, options: VllmOptions) -> None:
        """`ConfigError` without vLLM, `MachineError` when it cannot run the model here."""
        version = import_vllm().__version__
        if device.type == "cuda" and dtype == "float32":
            require_exact_products(device)
        # On the device with its number, as logits have it: no step may compile, or wait for the device.
        check_draw(torch.empty(0, device=device).device, run.skeleton.config.get_text_config().vocab_size)
        self._class = EngineClass(engine="vllm", version=version, dtype=dtype, device=device_class(device))
        self._policy = VllmPolicy(run, device=device, dtype=dtype, options=options)
        use_exact_arithmetic()  # last: vLLM sets some of it by its own variables
        engine = self._policy.engine
        assert engine is not None
        self._room = CacheRoom(tokens=engine.cache_tokens, sequences=engine.sequences, limit=engine.context)
        self._context = engine.context
        self._sequences = engine.sequences
        self._vocabulary: int = run.skeleton.config.get_text_config().vocab_size
        self._tickets = itertools.count()
        self._rows: dict[Ticket, _Row] = {}  # in the order of submission
        self._has_policy = False
        self._unreported = StepResult(0)

    @property
    def engine_class(self) -> EngineClass:
        """See `Sampler.engine_class`."""
        return self._class

    @property
    def in_flight(self) -> int:
        """See `Sampler.in_flight`."""
        return len(self._rows) + len(self._unreported.ended)

    @property
    def room(self) -> int:
        """See `Sampler.room`."""
        return self._room.more([row.most_tokens for row in self._rows.values()])

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """See `Sampler.stage`."""
        return self._policy.stage(weights, version)

    def swap(self, staged: StagedWeights) -> None:
        """See `Sampler.swap`. Completions in flight gain about a token on the way, which `step` reports."""
        self._has_policy = False
        # What was computed of their prompts is the old policy's: they start again under the new one.
        self._withdraw([row for row in self._rows.values() if row.in_engine and not row.token_ids])
        try:
            made = self._load(staged)
        except (IntegrityError, MachineError):
            made = self._load(staged)  # in a new engine
        before = self._unreported
        self._unreported = StepResult(before.tokens + made.tokens, before.ended + made.ended)
        self._has_policy = True

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Ticket]:
        """See `Sampler.submit`."""
        self._check_policy()
        for request in requests:
            if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= self._vocabulary:
                raise ConfigError("a prompt holds token ids outside the model's vocabulary")
            size = len(request.prompt_ids) + request.max_new_tokens
            if size > self._context:
                raise ConfigError(
                    f"prompt and completion of {size} tokens exceed the context of {self._context} that fits vLLM here",
                    remedy="Give it more memory, shorten the prompts or lower max_new_tokens.",
                )
        rows = [_Row(next(self._tickets), request) for request in requests]
        self._rows.update((row.ticket, row) for row in rows)
        return [row.ticket for row in rows]

    def step(self) -> StepResult:
        """See `Sampler.step`."""
        reported, self._unreported = self._unreported, StepResult(0)
        if not self._rows:
            return reported
        try:
            self._check_policy()
            engine = self._policy.engine
            assert engine is not None
            self._admit(engine)
            made = self._absorb(engine.step())
        except IntegrityError:
            self.cancel()
            raise
        return StepResult(reported.tokens + made.tokens, reported.ended + made.ended)

    def cancel(self) -> None:
        """See `Sampler.cancel`."""
        self._withdraw([row for row in self._rows.values() if row.in_engine])
        self._rows.clear()
        self._unreported = StepResult(0)

    def sleep(self) -> None:
        """See `Sampler.sleep`. Where vLLM cannot sleep, as on a CPU, the engine is freed, and `swap` builds another."""
        self.cancel()
        self._has_policy = False
        self._policy.sleep()

    def _check_policy(self) -> None:
        if not self._has_policy:
            raise IntegrityError("the engine holds no policy")

    def _load(self, staged: StagedWeights) -> StepResult:
        """Load a policy. When that fails, the engine is gone, and rows go on in the next."""
        try:
            return self._absorb(self._policy.load(staged, next(self._tickets)))
        except (IntegrityError, MachineError):
            self._policy.close()
            for row in self._rows.values():
                row.in_engine = False
            raise

    def _admit(self, engine: VllmEngine) -> None:
        """Hand queued rows to the engine, up to its number of sequences. Those resumed keep their tokens."""
        space = self._sequences - sum(row.in_engine for row in self._rows.values())
        for row in [row for row in self._rows.values() if not row.in_engine][:space]:
            request, made = row.request, len(row.token_ids)
            arguments = DrawArguments(
                ticket=row.ticket, seed=request.seed, temperature=request.temperature, first=row.position
            )
            engine.add(
                arguments,
                [*request.prompt_ids, *row.token_ids],
                salt=self._policy.salt,
                max_tokens=request.max_new_tokens - made,
                stop_ids=request.stop_ids,
            )
            row.in_engine = True

    def _withdraw(self, rows: list[_Row]) -> None:
        """Take rows out of the engine."""
        if self._policy.engine is not None and rows:
            self._policy.engine.abort(row.ticket for row in rows)
        for row in rows:
            self._policy.draws.forget(row.ticket)
            row.in_engine = False

    def _absorb(self, outputs: Sequence[EngineOutput]) -> StepResult:
        """Record what the engine sampled. `IntegrityError` when it is not what was drawn; nothing is recorded then."""
        draws = self._policy.draws
        made: dict[Ticket, list[DrawnToken]] = {}
        for output in outputs:
            row, tokens = self._rows[output.ticket], made.setdefault(output.ticket, [])
            for token in output.token_ids:
                drawn = draws.take(row.ticket, row.position + len(tokens))
                if drawn is None or not drawn.is_number:
                    raise IntegrityError("the policy gives logits that are not numbers")
                if drawn.token != token:
                    raise IntegrityError(f"vLLM returned token {token} where {drawn.token} was drawn")
                tokens.append(drawn)
            if output.ended and not row.ends_with(tokens):
                raise IntegrityError("vLLM ended a completion before its limit")
        for ticket, tokens in made.items():
            for drawn in tokens:
                self._rows[ticket].add(drawn.token, drawn.logprob, drawn.version)
        ended = [self._rows.pop(output.ticket) for output in outputs if output.ended]
        for row in ended:
            draws.forget(row.ticket)
            self._room.ended(len(row.request.prompt_ids) + len(row.token_ids), row.most_tokens)
        return StepResult(sum(map(len, made.values())), tuple((row.ticket, row.generation()) for row in ended))


_ENDED_KEPT = 256
_ENDED_NEEDED = 16
"""Before that number has ended, every completion is expected to reach its limit: the first to end are the shortest."""

_RESERVE = 1.25
"""Expected sizes times this are reserved: a full cache makes vLLM drop a completion's keys and compute them again."""


class CacheRoom:
    """Counts in tokens, prompts included."""

    def __init__(self, *, tokens: int, sequences: int, limit: int) -> None:
        """A cache of `tokens` that at most `sequences` completions share; the first are expected to have `limit`."""
        self._tokens = tokens
        self._sequences = sequences
        self._shares: deque[float] = deque(maxlen=_ENDED_KEPT)
        self._limit = limit

    def ended(self, size: int, limit: int) -> None:
        """A completion ended at `size` tokens that could have had `limit`."""
        self._shares.append(size / limit)

    def more(self, limits: Collection[int]) -> int:
        """Completions that still fit besides those in flight, whose `limits` these are; 0 or less when it is full.

        The next are taken to be of the size of the largest in flight, or of the last ones.
        """
        self._limit = max(limits, default=self._limit)
        share = 1.0
        if len(self._shares) >= _ENDED_NEEDED:
            share = min(1.0, _RESERVE * fmean(self._shares))
        free = self._tokens - share * sum(limits)
        return min(self._sequences - len(limits), int(free // (share * self._limit)))
