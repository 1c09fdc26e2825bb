"""Messages between a learner and its replayers, on pipes: a length, then one typed message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from p2prl.confinement.pipe_io import read_exactly, write_all
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.scorer_port import Scored
from p2prl.protocol.lora_spec import LoraSpec
from p2prl.protocol.rollout_group import EngineClass

_LENGTH_BYTES = 8

_FIELDS = ("margins", "logprobs", "best_logprobs", "sizes")
"""Of `Scored`, one number a token."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The model that replayers compute with."""

    first: str
    """Directory of the run's first weights."""
    lora: LoraSpec | None
    dtype: str
    """Type it computes in."""
    published: str
    """Type of the words of published weights."""
    weight_bytes: int
    """Bytes of a version's weights."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What a replayer is started with, as its argument."""

    model: Model
    device: str
    threads: int
    """CPU threads; 0 leaves them to torch."""
    answers: int
    """Descriptor that it answers on."""
    weights: int
    """Descriptor of the file in which its learner puts weights."""


class Load(msgspec.Struct, frozen=True, tag=True):
    """Load the policy whose weights are in the file."""


class Sleep(msgspec.Struct, frozen=True, tag=True):
    """Forget the policy."""


class Rows(msgspec.Struct, frozen=True, tag=True):
    """Replay completions. Token ids are little-endian uint32."""

    prompts: list[bytes]
    completions: list[bytes]
    probes: list[bytes]
    """Of each completion, or none."""
    seeds: list[int]
    first_positions: list[int]
    temperatures: list[float]

    @classmethod
    def of(
        cls,
        requests: Sequence[GenerationRequest],
        token_ids: Sequence[Sequence[int]],
        probes: Sequence[Sequence[int]],
    ) -> Rows:
        """Pack the arguments of `Scorer.replay`."""
        return cls(
            prompts=[_ids(request.prompt_ids) for request in requests],
            completions=[_ids(ids) for ids in token_ids],
            probes=[_ids(tokens) for tokens in probes],
            seeds=[request.seed for request in requests],
            first_positions=[request.first_position for request in requests],
            temperatures=[request.temperature for request in requests],
        )

    def arguments(self) -> tuple[list[GenerationRequest], list[list[int]], list[list[int]]]:
        """The arguments of `Scorer.replay`, as far as a scorer reads them."""
        completions = [_read_ids(raw) for raw in self.completions]
        requests = [
            GenerationRequest(
                prompt_ids=tuple(_read_ids(prompt)),
                seed=seed,
                max_new_tokens=len(ids),
                temperature=temperature,
                stop_ids=frozenset(),
                first_position=first,
            )
            for prompt, ids, seed, first, temperature in zip(
                self.prompts, completions, self.seeds, self.first_positions, self.temperatures, strict=True
            )
        ]
        return requests, completions, [_read_ids(raw) for raw in self.probes]


Command = Load | Sleep | Rows


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is built, without a policy."""

    engine: EngineClass
    layers: int


class Done(msgspec.Struct, frozen=True, tag=True):
    """A command without a result is carried out."""


class Replayed(msgspec.Struct, frozen=True, tag=True):
    """Results of a replay, little-endian float32: a scorer computes no finer."""

    scores: list[bytes]
    """Of each completion, the fields of `Scored` with a number a token, one after the other."""
    probes: list[bytes]

    @classmethod
    def of(cls, scored: Sequence[Scored]) -> Replayed:
        """Pack a scorer's results."""
        return cls(
            [_floats([getattr(row, name) for name in _FIELDS]) for row in scored],
            [_floats(row.probe_logprobs) for row in scored],
        )

    def scored(self) -> list[Scored]:
        """The scorer's results."""
        found = []
        for scores, probes in zip(self.scores, self.probes, strict=True):
            fields = np.frombuffer(scores, dtype="<f4").reshape(len(_FIELDS), -1).tolist()
            numbers = {name: tuple(field) for name, field in zip(_FIELDS, fields, strict=True)}
            found.append(Scored(**numbers, probe_logprobs=tuple(np.frombuffer(probes, dtype="<f4").tolist())))
        return found


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A command raised this error."""

    kind: str
    """Name of its class."""
    message: str
    remedy: str


Answer = Ready | Done | Replayed | Failed

_encoder = msgspec.msgpack.Encoder()
_commands = msgspec.msgpack.Decoder(Command)
_answers = msgspec.msgpack.Decoder(Answer)


def send(descriptor: int, message: Command | Answer) -> None:
    """Write a message. `BrokenPipeError` when nobody reads it any more."""
    encoded = _encoder.encode(message)
    write_all(descriptor, len(encoded).to_bytes(_LENGTH_BYTES, "little"))
    write_all(descriptor, encoded)


def receive_command(descriptor: int) -> Command | None:
    """Read a command; None at the end, also in the middle of one: the learner is gone."""
    encoded = _receive(descriptor)
    return _commands.decode(encoded) if encoded else None


def receive_answer(descriptor: int) -> Answer | None:
    """Read an answer; None at the end, also in the middle of one: the replayer is gone."""
    encoded = _receive(descriptor)
    return _answers.decode(encoded) if encoded else None


def _receive(descriptor: int) -> bytes:
    length = read_exactly(descriptor, _LENGTH_BYTES)
    return read_exactly(descriptor, int.from_bytes(length, "little")) if length else b""


def _ids(ids: Sequence[int]) -> bytes:
    return np.asarray(ids, dtype="<u4").tobytes()


def _read_ids(raw: bytes) -> list[int]:
    return [int(token) for token in np.frombuffer(raw, dtype="<u4")]


def _floats(numbers: Any) -> bytes:
    return np.asarray(numbers, dtype="<f4").tobytes()
