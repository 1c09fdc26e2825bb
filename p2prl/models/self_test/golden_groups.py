"""Golden groups: known completions of the golden policy with the learner's numbers, to test an engine against at join.

`p2prl init` computes them once (`golden_creation`), and puts them among the run's files (`golden.json`). They are of a
policy that every machine makes for itself (`golden_policy`), in the shape of the run's model: so a volunteer learns
before it downloads any weights, and at whatever version it joins, whether its work would be accepted.
"""

from __future__ import annotations

import math

import msgspec

from p2prl.errors import RemoteProtocolError
from p2prl.models.self_test.golden_policy import BY_SIDE
from p2prl.protocol.rollout_group import EngineClass

GOLDEN_FILE = "golden.json"

MAX_GOLDEN_BYTES = 64 * 1024
"""Most bytes of the file; it has about 15 kB."""

CANDIDATES = 4
"""Tokens known of each position: rounding mistakes one of the first few for the best, never another."""

_MOST_ROWS, _MOST_TOKENS = 64, 64


class Candidate(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One of the best tokens of a position."""

    token: int
    margin: float
    """Nats its noisy logit lies below the best."""
    logprob: float


class Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A token of a golden completion: the first candidate, of margin 0."""

    size: float
    """Root mean square of the logits, at the temperature."""
    candidates: tuple[Candidate, ...]


class GoldenRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One golden completion."""

    prompt: tuple[int, ...]
    seed: int
    positions: tuple[Position, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The completion."""
        return tuple(position.candidates[0].token for position in self.positions)


class GoldenGroups(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The file."""

    engine: EngineClass
    """The class that computed the numbers."""
    temperature: float
    rows: tuple[GoldenRow, ...]
    revision: int = BY_SIDE
    """Rule of the golden policy's weights, as in `golden_policy`; absent for the first one."""


def read_golden(raw: bytes, *, vocabulary: int, temperature: float) -> GoldenGroups:
    """The contents of a file from the network. `RemoteProtocolError` when it is not one of this run."""
    if len(raw) > MAX_GOLDEN_BYTES:
        raise RemoteProtocolError(f"{GOLDEN_FILE} has {len(raw)} bytes, more than {MAX_GOLDEN_BYTES}")
    try:
        golden = msgspec.json.decode(raw, type=GoldenGroups)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"{GOLDEN_FILE} cannot be read") from error
    if golden.temperature != temperature or not 0 < len(golden.rows) <= _MOST_ROWS or golden.revision < 0:
        raise RemoteProtocolError(f"{GOLDEN_FILE} is not of this run's sampling settings")
    for row in golden.rows:
        sound = 0 < len(row.prompt) <= _MOST_TOKENS and 0 < len(row.positions) <= _MOST_TOKENS
        sound = sound and 0 <= row.seed < 1 << 63 and all(_is_sound(position) for position in row.positions)
        ids = (*row.prompt, *(c.token for position in row.positions for c in position.candidates))
        if not sound or min(ids) < 0 or max(ids) >= vocabulary:
            raise RemoteProtocolError(f"{GOLDEN_FILE} holds impossible numbers")
    return golden


def _is_sound(position: Position) -> bool:
    numbers = [number for c in position.candidates for number in (c.margin, c.logprob)]
    best = position.candidates[0] if position.candidates else None
    return (
        best is not None
        and best.margin == 0.0
        and len(position.candidates) <= CANDIDATES
        and all(map(math.isfinite, (position.size, *numbers)))
        and position.size >= 0.0
        and all(c.margin >= 0.0 >= c.logprob for c in position.candidates)
    )
