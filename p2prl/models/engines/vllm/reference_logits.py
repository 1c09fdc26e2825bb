"""Known answers for engines: logits of a policy computed from its weight bytes alone, one layer in memory at a time.

An engine may fuse, pack or copy weights, so its memory cannot be compared with the bytes it was given; its logits can.
The model here is the run's transformers architecture in float32 on the CPU, without weights: each module reads its own
when it runs and drops them afterwards. Large matrices are read in pieces, so checking a policy of 8 billion weights
takes about a hundred MiB besides its bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from p2prl.models.run_model import RunModel
from p2prl.models.weights.layout import TORCH_DTYPES
from p2prl.models.weights.reader import WeightReader

_PIECE = 1 << 23
"""Weights of a matrix converted at once: 32 MiB in float32."""

_LARGEST_ERROR = {"float32": 1e-3, "bfloat16": 0.2, "float16": 0.03}
"""Root mean square error of a first policy's logits, relative to their standard deviation: ten times what rounding
gives. Logits of other weights are off by 1.4."""

_GROWTH = 4.0
"""Largest growth of the error from one policy to the next."""

_SMALLEST_LIMIT = 1e-5
"""Floor of the limit: an error may be 0 by chance."""

_SMALLEST_SPREAD = 1e-3
"""Added to the standard deviation, for a model whose logits are all equal."""


class ReferenceLogits:
    """Computes next-token logits of any policy of one run."""

    def __init__(self, run: RunModel, *, dtype: str) -> None:
        """`dtype` is that of the engine to be checked: weights are rounded to it, as the engine rounds them."""
        self._dtype = TORCH_DTYPES[dtype]
        self._layout = run.layout
        self._model = run.outline()
        self._reader: WeightReader | None = None
        self._busy = threading.Lock()
        # A tied weight has several names; the layout knows the first.
        names = {id(tensor): name for name, tensor in reversed(self._model.state_dict(keep_vars=True).items())}
        parents = {id(child): parent for parent in self._model.modules() for child in parent.children()}
        for module in self._model.modules():
            held = {**module._parameters, **module._buffers}
            own = {key: names[id(tensor)] for key, tensor in held.items() if id(tensor) in names}
            if type(module) is nn.Embedding:
                module.forward = partial(self._embed, own["weight"])  # type: ignore[method-assign]
            elif type(module) is nn.Linear:
                module.forward = partial(  # type: ignore[method-assign]
                    self._project, own["weight"], own.get("bias")
                )
            elif own:
                # Layers that keep a state read the weights of their convolution, and do not run it.
                runner = parents[id(module)] if isinstance(module, nn.Conv1d) else module
                self._fill_while_running(module, own, runner=runner)

    @torch.inference_mode()
    def logits(self, weights: bytes | bytearray | memoryview, prompt: Sequence[int]) -> Tensor:
        """Logits (V,) after `prompt`, in float32. From any thread."""
        with self._busy:
            self._reader = WeightReader(self._layout, weights)
            try:
                made: Tensor = self._model(input_ids=torch.tensor([prompt]), use_cache=False, logits_to_keep=1).logits
            finally:
                self._reader = None
        return made[0, -1]

    def _tensor(self, name: str) -> Tensor:
        assert self._reader is not None
        return self._reader.tensor(name).to(self._dtype).float()

    def _rows(self, name: str, start: int, end: int) -> Tensor:
        assert self._reader is not None
        return self._reader.rows(name, start, end).to(self._dtype).float()

    def _embed(self, weight: str, ids: Tensor) -> Tensor:
        rows = [self._rows(weight, token, token + 1) for token in ids.flatten().tolist()]
        return torch.cat(rows).view(*ids.shape, -1)

    def _project(self, weight: str, bias: str | None, inputs: Tensor) -> Tensor:
        assert self._reader is not None
        height, width = self._reader.shape(weight)
        step = max(1, _PIECE // width)
        pieces = (self._rows(weight, start, min(start + step, height)) for start in range(0, height, step))
        projected = torch.cat([functional.linear(inputs, piece) for piece in pieces], dim=-1)
        return projected if bias is None else projected + self._tensor(bias)

    def _fill_while_running(self, module: nn.Module, own: dict[str, str], *, runner: nn.Module) -> None:
        """`module` has its weights while `runner` runs."""
        absent = {key: getattr(module, key) for key in own}

        def fill(running: nn.Module, args: Any) -> None:
            del running, args
            for key, name in own.items():
                held = module._parameters if key in module._parameters else module._buffers
                held[key] = nn.Parameter(self._tensor(name), requires_grad=False)

        def drop(running: nn.Module, args: Any, output: Any) -> None:
            del running, args, output
            for key, tensor in absent.items():
                held = module._parameters if key in module._parameters else module._buffers
                held[key] = tensor

        runner.register_forward_pre_hook(fill)
        runner.register_forward_hook(drop)


class LogitCheck:
    """Whether an engine's logits are the reference's, up to its rounding.

    How far rounding takes them depends on the machine and the model, so after the first policy the limit follows the
    error of the last accepted one: a head or a layer of an older policy shows as soon as it differs by more than noise.
    """

    def __init__(self, *, dtype: str) -> None:
        self._largest = _LARGEST_ERROR[dtype]
        self._limit = self._largest

    def accepts(self, logits: Tensor, reference: Tensor) -> bool:
        """Compare the logits (V,) of one position."""
        spread = float(reference.std()) + _SMALLEST_SPREAD
        error = float((logits.to("cpu", torch.float32) - reference).square().mean().sqrt()) / spread
        accepted = error <= self._limit  # false for a NaN
        if accepted:
            self._limit = min(self._largest, max(_GROWTH * error, _SMALLEST_LIMIT))
        return accepted
