"""Measured noise of each pair of engine classes, from the groups of peers with standing. Pure.

A *pair* is the class a volunteer declares (engine, version, dtype, device) and the scorer's own. Every replayed group
gives three estimates of the noise s of one logit (`replay_statistics` has the theory): the number of tokens that differ
grows with s, the sum of their margins with s², and the deviation of the claimed log-probs with s. Each peer's groups
are added up, and the largest of the three counts: too wide a band costs little, too narrow a one rejects honest work.

The band of a pair is the upper quartile of its peers with standing in this very pair, times a safety factor. A newcomer
moves nothing, and neither does a quarter of the peers. Of a pair without enough peers each group is its own measure
(`own_band`): what an engine rounds shows in all its tokens, so that one far from its draw stands out even where nobody
knows the engine. Whatever they claim, `noise_scale` keeps the band between what roundoff alone explains and the widest
of the dtype. Groups outside the band whose noise some class explains count too,
so a band that has become too narrow, after an update of a driver perhaps, widens again. Evidence decays with the
half-life of standing.

`KeptBaselines` outlive the process in a small file, replaced whole now and then. Losing it costs nothing but time:
until enough groups are seen again, every pair has the widest band of its dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path

import msgspec
import numpy as np

from p2prl.disk_full import replace_file, write_error
from p2prl.errors import RemoteProtocolError
from p2prl.models.replay_statistics.judge import FLOAT16_ROUNDOFF, LEAST_DENSITY, TokenScores
from p2prl.models.replay_statistics.noise import Floats
from p2prl.protocol.identity import PUBLIC_KEY_BYTES
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import EngineClass
from p2prl.protocol.standing import HALF_LIFE_S, Standing

LEAST_PEERS = 3
"""Peers with standing that a pair needs before it counts as measured: one machine is no class."""

SAFETY = 2.0
"""Band over the measured noise. Rows differ by up to 1.5, and machines of one class by their drivers."""

MOST_TOKENS = 1 << 18
"""Most tokens that a peer's evidence weighs, so that new groups always move it."""

MOST_RECORDS = 4096
"""Most (pair, peer) records kept, over all pairs: names of classes are claims, and keys cost nothing. About 1 MB."""

MAX_FILE_BYTES = 4 * 1024 * 1024
"""Most bytes of stored records that are read: `MOST_RECORDS` with the longest names, and room to spare."""

Pair = tuple[EngineClass, EngineClass]
"""The class that a volunteer declares, and the scorer's."""


class NoiseEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sums over replayed tokens; those that are "per logit of noise" are expected values at a noise of one logit."""

    tokens: float = 0.0
    mismatched: float = 0.0
    ties: float = 0.0
    """Tokens that would differ, per logit of noise."""
    margins: float = 0.0
    """Nats."""
    squares: float = 0.0
    """Sum of the margins, per squared logit of noise."""
    deviation: float = 0.0
    """Of the claimed log-probs from the scorer's, less the rounding of the claims; nats."""
    spread: float = 0.0
    """Sum of these deviations, per logit of noise."""

    @classmethod
    def of(cls, tokens: TokenScores, temperature: float) -> NoiseEvidence:
        """The sums of one group; nothing if one of its numbers is not finite."""
        numbers = (tokens.margins, tokens.logprobs, tokens.best_logprobs, tokens.claimed)
        if not all(np.all(np.isfinite(each)) for each in numbers):
            return cls()
        density = np.maximum(LEAST_DENSITY, 1.0 - np.exp(2.0 * tokens.best_logprobs))
        sigma = math.sqrt(2.0) / temperature
        off: Floats = np.abs(tokens.claimed - tokens.logprobs) - FLOAT16_ROUNDOFF * np.abs(tokens.logprobs)
        return cls(
            tokens=float(tokens.margins.size),
            mismatched=float(np.count_nonzero(tokens.margins > 0.0)),
            ties=float(np.sum(density)) * sigma / math.sqrt(2.0 * math.pi),
            margins=float(np.sum(tokens.margins)),
            squares=float(np.sum(density)) * sigma**2 / 4.0,
            deviation=float(np.sum(np.maximum(off, 0.0))),
            spread=float(np.sum(-np.expm1(tokens.logprobs))) * sigma * math.sqrt(2.0 / math.pi),
        )

    @property
    def values(self) -> tuple[float, ...]:
        """All sums, in order."""
        return tuple(getattr(self, name) for name in self.__struct_fields__)

    def plus(self, other: NoiseEvidence, *, weight: float = 1.0) -> NoiseEvidence:
        """Both together, this one with `weight`; at most `MOST_TOKENS`, newer ones in full."""
        room = max(0.0, MOST_TOKENS - other.tokens)
        if self.tokens > 0.0:
            weight = min(weight, room / self.tokens)
        return NoiseEvidence(*(weight * a + b for a, b in zip(self.values, other.values, strict=True)))

    @property
    def noise(self) -> float:
        """Noise of one logit that explains the sums, in logits; infinite without tokens. Never too low by chance: the
        number of tokens is raised by two of its standard deviations."""
        if not (self.ties > 0.0 and self.squares > 0.0):
            return math.inf
        by_number = (self.mismatched + 2.0 * math.sqrt(self.mismatched + 1.0)) / self.ties
        by_margins = math.sqrt(max(0.0, self.margins) / self.squares)
        by_logprobs = self.deviation / self.spread if self.spread > 0.0 else 0.0
        return max(by_number, by_margins, by_logprobs)


def own_band(tokens: TokenScores, temperature: float) -> float:
    """The band of a group whose pair nobody has measured, in logits, its safety margin included.

    From all tokens but the one farthest from its draw, which must not vouch for itself.
    """
    if not tokens.margins.size:
        return math.inf
    worst = int(np.argmax(tokens.margins))
    others = TokenScores(**{each.name: np.delete(getattr(tokens, each.name), worst) for each in fields(TokenScores)})
    return SAFETY * NoiseEvidence.of(others, temperature).noise


@dataclass(slots=True)
class _Record:
    """One peer in one pair."""

    standing: Standing = field(default_factory=Standing)
    """Of the peer in this pair: its groups that passed here."""
    evidence: NoiseEvidence = field(default_factory=NoiseEvidence)


class NoiseBaselines:
    """Noise by pair of classes."""

    def __init__(self) -> None:
        self._pairs: dict[Pair, dict[bytes, _Record]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._pairs.values()))

    def record(self, pair: Pair, peer: bytes, evidence: NoiseEvidence, reason: str, *, now: float) -> None:
        """Take a replayed group of `peer`, and the reason of its rejection: empty when it passed.

        Only passed groups earn standing. A group that no class explains says nothing about its class.
        """
        record = self._pairs.get(pair, {}).get(peer) or _Record()
        before = record.standing
        if reason and reason != RejectionReason.ENGINE_MISMATCH:
            record.standing = before.after(now, failed=1.0)
        else:
            kept = 0.5 ** (max(0.0, now - before.at) / HALF_LIFE_S)
            record.standing = before.after(now, passed=0.0 if reason else 1.0)
            record.evidence = record.evidence.plus(evidence, weight=kept)
        self._put(pair, peer, record)

    def measured(self, pair: Pair, now: float | None = None) -> float | None:
        """The band of a pair in logits, its safety margin included; None unless enough peers have standing in it.

        Standing is as of `now`, or as of each peer's last group.
        """
        records = self._pairs.get(pair, {}).values()
        known = [r for r in records if (r.standing if now is None else r.standing.after(now)).is_known]
        if len(known) < LEAST_PEERS:
            return None
        noises = sorted(record.evidence.noise for record in known)
        return SAFETY * noises[math.ceil(0.75 * len(noises)) - 1]

    def encode(self) -> bytes:
        """All records, for `decode`."""
        rows = [
            _Row(*pair, peer, record.standing, record.evidence)
            for pair, records in self._pairs.items()
            for peer, record in records.items()
        ]
        return msgspec.json.encode(rows)

    @classmethod
    def decode(cls, raw: bytes) -> NoiseBaselines:
        """What `encode` wrote. `RemoteProtocolError` when it is damaged."""
        if len(raw) > MAX_FILE_BYTES:
            raise RemoteProtocolError(f"noise baselines of {len(raw)} bytes")
        try:
            rows = msgspec.json.decode(raw, type=list[_Row])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RemoteProtocolError(f"noise baselines cannot be read: {error}") from error
        made = cls()
        for row in rows[:MOST_RECORDS]:
            standing = row.standing
            numbers = (standing.passed, standing.failed, standing.at, *row.evidence.values)
            if len(row.peer) != PUBLIC_KEY_BYTES or not all(math.isfinite(n) and n >= 0.0 for n in numbers):
                raise RemoteProtocolError("noise baselines hold impossible numbers")
            record = _Record(standing, row.evidence)
            made._put((row.sampler, row.scorer), row.peer, record)
        return made

    def _put(self, pair: Pair, peer: bytes, record: _Record) -> None:
        """Keep a record; the oldest record without standing makes room for a new one, else the oldest."""
        records = self._pairs.setdefault(pair, {})
        if peer not in records and len(self) >= MOST_RECORDS:
            entries = ((p, k, r.standing) for p, of_pair in self._pairs.items() for k, r in of_pair.items())
            oldest, key, _ = min(entries, key=lambda entry: (entry[2].is_known, entry[2].at))
            del self._pairs[oldest][key]
            if not self._pairs[oldest] and oldest != pair:
                del self._pairs[oldest]
        records[peer] = record


class _Row(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A record as it is stored."""

    sampler: EngineClass
    scorer: EngineClass
    peer: bytes
    standing: Standing
    evidence: NoiseEvidence


_SAVE_EVERY = 512
"""Groups between two writes: a minute's work or more, and a fraction of a second's to measure again."""


class KeptBaselines:
    """Baselines of one learner or validator, in a file if it has one."""

    def __init__(self, path: Path | None = None) -> None:
        """A file that is damaged is begun anew."""
        self._path = path
        self._unsaved = 0
        self._noise = NoiseBaselines()
        if path is not None and path.exists() and path.stat().st_size <= MAX_FILE_BYTES:
            try:
                self._noise = NoiseBaselines.decode(path.read_bytes())
            except RemoteProtocolError:
                path.unlink(missing_ok=True)

    @property
    def records(self) -> int:
        """Peers recorded, over all pairs."""
        return len(self._noise)

    def measured(self, pair: Pair) -> float | None:
        """See `NoiseBaselines.measured`."""
        return self._noise.measured(pair)

    def record(self, pair: Pair, peer: bytes, evidence: NoiseEvidence, reason: str, *, now: float) -> None:
        """See `NoiseBaselines.record`. Writes the file when it is time."""
        self._noise.record(pair, peer, evidence, reason, now=now)
        self._unsaved += 1
        if self._unsaved >= _SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write the file, if there is news."""
        if self._path is None or not self._unsaved:
            return
        try:
            replace_file(self._path, self._noise.encode())
        except OSError as error:
            raise write_error(error, self._path) from error
        self._unsaved = 0
