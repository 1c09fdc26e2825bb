"""Decoding on recorded steps without a card: a recorder, a small policy and requests for it.

Like a CUDA graph the recorder repeats torch's operations on the tensors recorded. What Python decides during a
recording is decided for good, and what is replaced afterwards is not seen. As on a card, a recording fails that copies
a number to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen2Config, Qwen2ForCausalLM

from p2prl.models.engines.transformers import decode_graph, slot_decoder
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.slot_decoder import SlotDecoder
from p2prl.models.sampler_port import Generation, GenerationRequest
from p2prl.models.seeded_draw.draw import draw_with_logprobs
from p2prl.models.weights.layout import TORCH_DTYPES, layout_of

VOCABULARY = 40

_READS = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::nonzero", "aten::equal"}


@torch.library.custom_op("p2prl_tests::draw", mutates_args=())
def _draw(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    return draw_with_logprobs(logits, temperatures, seeds, positions)


def draw_as_operation(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The draw as one operation of torch's, so that it can be recorded."""
    made: tuple[Tensor, Tensor] = _draw(logits, temperatures, seeds, positions)
    return made


def _tensors(tree: Any) -> list[Tensor]:
    return [part for part in tree_leaves(tree) if isinstance(part, Tensor)]


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Callable[[], None]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.name() in _READS:
            raise RuntimeError(f"{func.name()} is not permitted while recording")
        made = func(*args, **kwargs)
        held = {part.untyped_storage().data_ptr() for part in _tensors((args, kwargs))}
        outputs = _tensors(made)
        if func._schema.is_mutable:
            self.calls.append(lambda: func(*args, **kwargs))
        elif not any(part.untyped_storage().data_ptr() in held or part._is_view() for part in outputs):

            def again() -> None:
                for kept, new in zip(outputs, _tensors(func(*args, **kwargs)), strict=True):
                    kept.copy_(new)

            self.calls.append(again)
        return made


class ReplayedCalls:
    """See `decode_graph.Recorder`."""

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See `Recorder.record`."""
        work()
        with _Recording() as recording:
            work()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            for call in recording.calls:
                call()

        return replay

    def read_later(self, parts: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """See `Recorder.read_later`."""
        copies = [part.clone() for part in parts]
        return lambda: copies

    def finish(self) -> None:
        """See `Recorder.finish`."""


def use_replayed_calls(monkeypatch: pytest.MonkeyPatch) -> list[ReplayedCalls]:
    """Have samplers record with `ReplayedCalls`; the recorders of those that are made from now on, in order."""
    made: list[ReplayedCalls] = []

    def recorder(_: PolicyModel) -> ReplayedCalls:
        made.append(ReplayedCalls())
        return made[-1]

    monkeypatch.setattr(slot_decoder, "recorder_for", recorder)
    monkeypatch.setattr(decode_graph, "draw_with_logprobs", draw_as_operation)
    monkeypatch.setattr(slot_decoder, "LEAST_WIDTH", 4)
    return made


def small_policy(seed: int = 1, dtype: str = "float32") -> PolicyModel:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        config = Qwen2Config(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )  # fmt: skip
        model = Qwen2ForCausalLM(config)
    for parameter in model.parameters():
        parameter.data *= 8  # logits that differ by some units
    model.to(TORCH_DTYPES[dtype])
    return PolicyModel(model, layout_of(model, dtype))


def requests(count: int, *, tokens: int = 12, stops: Sequence[int] = ()) -> list[GenerationRequest]:
    """Groups of three with a prompt each; every completion has its own limit and temperature."""
    return [
        GenerationRequest(
            prompt_ids=tuple((5 * (i // 3) + 3 * j) % VOCABULARY for j in range(1 + i // 3 % 5)),
            seed=(i + 1) * 0x1234_5678_9ABC_DEF % 2**63,
            max_new_tokens=1 + (7 * i) % tokens,
            temperature=0.5 + i % 4 / 4,
            stop_ids=frozenset(stops),
        )
        for i in range(count)
    ]


def assert_same(made: Sequence[Generation], wanted: Sequence[Generation]) -> None:
    assert [each.token_ids for each in made] == [each.token_ids for each in wanted]
    for one, other in zip(made, wanted, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
        assert one.finished == other.finished


def graphs(sampler: TransformersSampler) -> int:
    decoder = sampler._decoder
    assert isinstance(decoder, SlotDecoder)
    return -1 if decoder._graphs is None else decoder._graphs.count
