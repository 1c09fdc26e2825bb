"""A recorder for tests without a card: like a CUDA graph it repeats torch's operations on the tensors recorded.

What Python decides during a recording is decided for good, and what is replaced afterwards is not seen. As on a card a
recording that copies a number to the host fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from p2prl.models.seeded_draw.draw import draw_with_logprobs

_READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal"}


@torch.library.custom_op("p2prl_tests::draw", mutates_args=())
def _draw(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    return draw_with_logprobs(logits, temperatures, seeds, positions)


def draw_as_operation(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The draw as one operation of torch's, so that it can be recorded."""
    made: tuple[Tensor, Tensor] = _draw(logits, temperatures, seeds, positions)
    return made


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], None]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.name() in _READS:
            raise RuntimeError(f"{func.name()} is not permitted while recording")
        made = func(*args, **kwargs)
        held = {part.data_ptr() for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor)}
        outputs = [part for part in tree_leaves(made) if isinstance(part, Tensor)]
        if func._schema.is_mutable:
            self.calls.append(lambda: func(*args, **kwargs))
        elif not any(part.untyped_storage().data_ptr() in held or part._is_view() for part in outputs):

            def again() -> None:
                for kept, new in zip(outputs, tree_leaves(func(*args, **kwargs)), strict=True):
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
