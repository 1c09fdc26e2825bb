"""Decoding steps recorded as CUDA graphs: one launch a step instead of thousands of calls, and no wait for the card.

A graph reads and writes fixed addresses: the state of the rows below, the slot cache, the weights. It is recorded when
a number of rows and a width first occur, both rounded up to a bucket. It must be dropped when any of them moves. New
weights are written in place, so a graph samples the policy that is there when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.row_draws import SampledRow
from p2prl.models.engines.transformers.slot_model import SlotModel
from p2prl.models.hardware.failures import is_out_of_memory
from p2prl.models.replay_statistics.judge import CREDITED_LOGITS, TokenScores, judge_tokens
from p2prl.models.replay_statistics.noise import noise_scale
from p2prl.models.seeded_draw.draw import card_draw, draw_with_logprobs, margins

LEAST_WIDTH = 64
"""Cache columns of the narrowest graph."""

GRAPH_BYTES = 1 << 28
"""Allowance for some tens of graphs and their pool, which holds the activations of the largest: a graph of half a
billion parameters has a thousand kernels."""

_WARM_UPS = 2
"""Runs before a recording: libraries choose kernels and take memory in the first."""

_LARGEST_POSITION = {"dynamic", "longrope"}
"""Rotary embeddings that depend on the largest position of a step, which they read from the card."""

_TOKENS, _POSITIONS, _SEEDS, _NOISE_POSITIONS, _ADVANCE = range(5)


class CaptureError(Exception):
    """A step cannot be recorded, or the recorded one computes something else."""


class Recorder(Protocol):
    """Records work of a device."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Do the work, and return a function that does it again from the same addresses. `RuntimeError`."""
        ...

    def read_later(self, parts: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """Begin to copy tensors to the host; the function returned waits for them."""
        ...

    def finish(self) -> None:
        """Wait until nothing recorded is running."""
        ...


class CardRecorder:
    """CUDA graphs that share one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See `Recorder.record`."""
        own, usual = self._stream, torch.cuda.current_stream(self._device)
        own.wait_stream(usual)
        with torch.cuda.stream(own):
            for _ in range(_WARM_UPS):
                work()
        usual.wait_stream(own)
        graph = torch.cuda.CUDAGraph()
        # Another thread may use the card meanwhile: it compares the next policy with this one.
        with torch.cuda.graph(graph, pool=self._pool, stream=own, capture_error_mode="thread_local"):
            work()
        return graph.replay

    def read_later(self, parts: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """See `Recorder.read_later`."""
        copies = [torch.empty(part.shape, dtype=part.dtype, pin_memory=True) for part in parts]
        for copy, part in zip(copies, parts, strict=True):
            copy.copy_(part, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(torch.cuda.current_stream(self._device))

        def wait() -> list[Tensor]:
            arrived.synchronize()
            return copies

        return wait

    def finish(self) -> None:
        """See `Recorder.finish`. The next graph begins another pool: the last graph of one takes it along."""
        torch.cuda.synchronize(self._device)
        self._pool = torch.cuda.graph_pool_handle()


def recorder_for(policy: PolicyModel) -> Recorder | None:
    """How to record steps of this policy; None where they cannot be."""
    ropes = getattr(policy.config, "rope_parameters", None) or {}
    kinds = {part.get("rope_type") for part in (ropes, *ropes.values()) if isinstance(part, dict)}
    if policy.device.type != "cuda" or kinds & _LARGEST_POSITION or card_draw(policy.device) is None:
        return None
    return CardRecorder(policy.device)


class DecodeGraphs:
    """Recorded steps of `model`, and the state of the rows that they decode."""

    def __init__(self, policy: PolicyModel, model: SlotModel, recorder: Recorder) -> None:
        self._policy = policy
        self._model = model
        self._recorder = recorder
        self._draw = card_draw(policy.device) or draw_with_logprobs
        self._steps: dict[tuple[int, int], Callable[[], None]] = {}
        self._moves = self._places()
        self._hold(0)

    @property
    def count(self) -> int:
        """Steps recorded."""
        return len(self._steps)

    def use(self, rows: Sequence[SampledRow]) -> None:
        """Decode these rows from now on. The cache has rows and columns for them."""
        if self._model.rows > self._state.shape[1]:
            self.drop()
            self._hold(self._model.rows)
        state = [
            [row.last_token for row in rows],
            [row.size - 1 for row in rows],
            [row.request.seed for row in rows],
            [row.position for row in rows],
            [int(not row.ended) for row in rows],
        ]
        self._state[:, : len(rows)] = torch.tensor(state, dtype=torch.int64)
        self._state[:, len(rows) :] = 0  # rows that fill a bucket decode token 0 in cache rows of their own
        self._temperatures[: len(rows)] = torch.tensor([row.request.temperature for row in rows])

    def stop(self, places: Sequence[int]) -> None:
        """Rows at these places have ended: they are decoded in vain, at their first column."""
        index = torch.tensor(places, device=self._state.device)
        self._state[_POSITIONS].index_fill_(0, index, 0)
        self._state[_ADVANCE].index_fill_(0, index, 0)

    def launch(self, count: int, width: int) -> Callable[[], tuple[list[int], list[float]]]:
        """Begin to decode one token of the first `count` rows, over `width` columns; what is returned waits for tokens
        and log-probs.

        `CaptureError` when it cannot be recorded; nothing has changed then.
        """
        if self._moves != self._places():
            self.drop()
        self._recorded(count, width)()
        arrived = self._recorder.read_later((self._drawn[:count], self._logprobs[:count]))

        def wait() -> tuple[list[int], list[float]]:
            tokens, logprobs = arrived()
            return tokens.tolist(), logprobs.tolist()

        return wait

    def drop(self) -> None:
        """Forget all graphs: something they use moves."""
        self._moves = self._places()
        if self._steps:
            self._recorder.finish()
            self._steps.clear()

    def _places(self) -> tuple[int, int]:
        return self._policy.moves, self._model.moves

    def _hold(self, rows: int) -> None:
        device = self._policy.device
        self._state = torch.zeros(5, rows, dtype=torch.int64, device=device)
        self._temperatures = torch.ones(rows, device=device)
        self._drawn = torch.zeros(rows, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(rows, device=device)

    def _recorded(self, count: int, width: int) -> Callable[[], None]:
        if (count, width) not in self._steps:
            advance = self._state[_ADVANCE].clone()
            self._state[_ADVANCE] = 0  # what runs meanwhile changes no row
            try:
                step = self._recorder.record(partial(self._step, count, width))
                plain_N = self._drawn[:count].clone()
                self._drawn.fill_(-1)
                step()
                if not self._is_as_plain(count, width, plain_N, advance[:count].nonzero()[:, 0]):
                    raise CaptureError("a recorded step draws other tokens")
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                raise CaptureError(str(error)) from error
            finally:
                self._state[_ADVANCE] = advance
            self._steps[count, width] = step
        return self._steps[count, width]

    def _is_as_plain(self, count: int, width: int, plain_N: Tensor, places: Tensor) -> bool:
        """Whether a recorded step, run before it counts, has drawn what the plain one drew at these places.

        In float32 these are the same tokens. In 16 bits a recording may take kernels that round otherwise, as another
        engine does: tokens are as good if a learner, who replays the plain step, credits them.
        """
        drawn_M = self._drawn[:count][places]
        if torch.equal(drawn_M, plain_N[places]):
            return True
        if self._policy.dtype is torch.float32 or bool((drawn_M < 0).any()):
            return False
        tokens_N, positions_N, seeds_N, noise_positions_N, _ = self._state[:, :count]
        logits_MV = self._model.logits(tokens_N, positions_N, width)[places]
        temperatures_M = self._temperatures[:count][places]
        replayed = margins(logits_MV, temperatures_M, seeds_N[places], noise_positions_N[places], drawn_M)
        sizes_M = logits_MV.float().square().mean(dim=1).sqrt() / temperatures_M
        scores = torch.stack([*replayed, sizes_M, self._logprobs[:count][places]]).double()
        dtype = self._policy.engine_class.dtype
        scale = noise_scale(claimed_dtype=dtype, run_dtype=dtype, scorer_dtype=dtype, layers=self._policy.layers)
        return all(
            not judge_tokens(
                TokenScores(*scores[:, temperatures_M == temperature].cpu().numpy()),
                scale,
                temperature,
                most=CREDITED_LOGITS / temperature,
            ).reason
            for temperature in set(temperatures_M.tolist())
        )

    def _step(self, count: int, width: int) -> None:
        tokens_N, positions_N, seeds_N, noise_positions_N, advance_N = self._state[:, :count]
        logits_NV = self._model.logits(tokens_N, positions_N, width)
        drawn_N, logprobs_N = self._draw(logits_NV, self._temperatures[:count], seeds_N, noise_positions_N)
        self._drawn[:count] = drawn_N
        self._logprobs[:count] = logprobs_N
        tokens_N.copy_(torch.where(advance_N > 0, drawn_N, tokens_N))
        positions_N += advance_N
        noise_positions_N += advance_N
