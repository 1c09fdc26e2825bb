"""Commands of rank 0, as the other ranks read them from their pipe: a length, then one typed message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

import msgspec
import numpy as np
import torch
from torch import Tensor

from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.learner.training.update_engine import EngineSettings
from p2prl.models.base_model.attention import Attention
from p2prl.models.logprobs.policy_forward import Row
from p2prl.protocol.lora_spec import LoraSpec

_LENGTH_BYTES = 8


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank needs to know before it joins the others."""

    ranks: int
    folder: str
    """Where the ranks meet, readable by this user alone."""
    threads: int
    """CPU threads of each."""


class Load(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Load the model, and keep this rank's part."""

    weights: str
    """Directory of the weights: a checkpoint, or the run's first."""
    first: str
    """Directory of the run's first weights."""
    lora: LoraSpec | None
    dtype: str
    attention: Attention
    parallel: ParallelConfig
    """The plan, of as many ranks as have met."""
    settings: EngineSettings


class Rows(msgspec.Struct, frozen=True):
    """Prompts and completions as little-endian uint32 token ids."""

    prompts: list[bytes]
    completions: list[bytes]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Rows:
        """Pack rows; prompts that several rows share are sent once for each."""
        return cls([_ids(prompt) for prompt, _ in rows], [_ids(completion) for _, completion in rows])

    def rows(self) -> list[Row]:
        """The rows, as views of the message."""
        found: list[Row] = []
        for prompt, completion in zip(self.prompts, self.completions, strict=True):
            found.append((np.frombuffer(prompt, dtype="<u4"), np.frombuffer(completion, dtype="<u4")))
        return found


class Score(msgspec.Struct, frozen=True, tag=True):
    """Score rows by the policy, keeping what `Push` needs; or by the reference policy."""

    rows: Rows
    tokens: int
    checkpointing: bool
    reference: bool = False

    @property
    def rule(self) -> MicroBatchRule:
        """The micro-batches."""
        return MicroBatchRule(tokens=self.tokens, checkpointing=self.checkpointing)


class Numbers(msgspec.Struct, frozen=True):
    """A little-endian float32 tensor."""

    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, tensor: Tensor) -> Numbers:
        """Pack a tensor."""
        array = tensor.detach().float().cpu().contiguous().numpy()
        return cls(array.shape, array.astype("<f4", copy=False).tobytes())

    def tensor(self) -> Tensor:
        """The tensor, on the CPU."""
        return torch.from_numpy(np.frombuffer(self.data, dtype="<f4").astype(np.float32)).reshape(self.shape)


class Push(msgspec.Struct, frozen=True, tag=True):
    """Add the gradient of the rows scored last. Both are (N, T)."""

    coefficients: Numbers
    value_coefficients: Numbers | None

    def value_tensor(self) -> Tensor | None:
        """The coefficients of the values, if any."""
        return None if self.value_coefficients is None else self.value_coefficients.tensor()


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Free gradients and graphs."""


class Clip(msgspec.Struct, frozen=True, tag=True):
    """Measure the gradient's norm and scale it down."""

    most: float


class Step(msgspec.Struct, frozen=True, tag=True):
    """Take an optimizer step."""

    learning_rate: float
    value_factor: float
    number: int


class Gather(msgspec.Struct, frozen=True, tag=True):
    """Send the weights to rank 0, rounded to `dtype` or as they are held."""

    dtype: str | None


class GatherGradients(msgspec.Struct, frozen=True, tag=True):
    """Send the gradients to rank 0."""


class GatherState(msgspec.Struct, frozen=True, tag=True):
    """Send optimizer state and reference policy to rank 0."""


class Restore(msgspec.Struct, frozen=True, tag=True):
    """Read this rank's part of a checkpoint's state."""

    directory: str


Command = Load | Score | Push | Forget | Clip | Step | Gather | GatherGradients | GatherState | Restore

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Command)


def send(pipe: IO[bytes], command: Command) -> None:
    """Write a command. `BrokenPipeError` when nobody reads it any more."""
    message = _encoder.encode(command)
    pipe.write(len(message).to_bytes(_LENGTH_BYTES, "little"))
    pipe.write(message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Command | None:
    """Read a command; None at the end, also in the middle of one: the sender is gone."""
    length = pipe.read(_LENGTH_BYTES)
    if len(length) < _LENGTH_BYTES:
        return None
    size = int.from_bytes(length, "little")
    message = pipe.read(size)
    if len(message) < size:
        return None
    command: Command = _decoder.decode(message)
    return command


def _ids(ids: object) -> bytes:
    return bytes(np.asarray(ids, dtype="<u4").tobytes())
