"""The patch benchmark: size and speed of weight patches compared with other codecs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from p2prl.errors import IntegrityError, MachineError, require
from p2prl.patches.dead_band import widest_band_ulp
from p2prl.patches.kernel_choice import fastest_kernels
from p2prl.patches.stream_format import SEGMENT_WORDS, words_digest
from p2prl.patches.words import BF16, Words
from p2prl_lab.bench.patch.compared_codecs import PRODUCT, Codec, codecs, sent_bytes
from p2prl_lab.bench.patch.dead_bands import BandRow, bands_as_markdown, measure_bands
from p2prl_lab.bench.patch.history_gain import VersionRow, history_as_markdown, measure_history
from p2prl_lab.bench.patch.report import Case, CodecRow, Limits, PatchReport, as_document, as_markdown, plot
from p2prl_lab.bench.patch.simulated_training import adam_versions, entropy_bits
from p2prl_lab.bench.patch.trained_updates import LEARNING_RATE, trained_versions
from p2prl_lab.bench.patch.weight_updates import (
    LEARNING_RATES,
    Updates,
    run_chains,
    run_updates,
    simulated_chains,
    simulated_updates,
)

MERGED_VERSIONS = 16
_BANDED_VERSIONS = 256
"""Updates simulated for dead bands: many, because at first no word has reached the edge of its band."""

TRAINED_UPDATES = 16
"""Versions of the policy that the benchmark trains, after the first."""

_MOST_PAIRS = 32
"""Number of a run's last updates to measure; more add no information."""


@dataclass(frozen=True, kw_only=True)
class PatchBenchConfig:
    """Updates to measure."""

    words: int = SEGMENT_WORDS
    """Words of a simulated segment."""
    repeats: int = 3
    """Calls per measurement; the fastest gives the speed."""
    run: Path | None = None
    """A run folder whose published versions are also measured."""
    train: str = ""
    """An environment, such as `chain4@240x6`, whose policy is trained and measured; empty for none."""
    bands: tuple[int, ...] = ()
    """Dead bands to publish the same updates with, ulp of bf16."""
    seed: int = 0

    def __post_init__(self) -> None:
        require("words", self.words, 65_536 <= self.words <= SEGMENT_WORDS, f"65536 to {SEGMENT_WORDS}")
        require("repeats", self.repeats, 1 <= self.repeats <= 100, "1 to 100")
        widest = widest_band_ulp(BF16)
        for band in self.bands:
            require("bands", band, 0 <= band <= widest, f"0 to {widest}")


def run_patch_bench(
    config: PatchBenchConfig, out: Path, *, on_progress: Callable[[str, float], None] | None = None
) -> PatchReport:
    """Measure, and write `patches.json`, `patches-table.md`, `patches.png` and, if asked for, `bands-table.md` and
    `history-table.md` to `out`.

    Sizes depend on the seed and the version of zstd; speeds depend on the machine. `IntegrityError` when a codec does
    not reproduce the new words, `ConfigError` when the run has nothing to measure.
    """
    real = [] if config.run is None else run_updates(config.run)
    total = len(LEARNING_RATES) + 1 + len(real) + bool(config.train) + 1 + bool(config.bands)
    cases: list[Case] = []
    history: list[VersionRow] = []

    def tell(stage: str, *, after: int = 0) -> None:
        if on_progress is not None:
            on_progress(stage, (len(cases) + after) / total)

    tell("simulating updates")
    for updates in simulated_updates(config.words, config.seed):
        tell(updates.name)
        cases.append(_measure(updates, config.repeats))
    for updates in real:
        tell(updates.name)
        cases.append(_measure(updates, config.repeats))
    if config.train:
        versions = trained_versions(
            config.train, TRAINED_UPDATES, config.seed, out, on_progress=lambda stage, _: tell(stage)
        )
        name = f"{config.train} lr {LEARNING_RATE:g}, bf16"
        tell(name)
        history = measure_history(
            list(versions), BF16, fastest_kernels(), lambda work: _best_time(work, config.repeats)
        )
        segments = [row[:SEGMENT_WORDS] for row in versions]
        cases.append(_measure(Updates(name=name, word_type=BF16, pairs=tuple(pairwise(segments))), config.repeats))
    tell("sixteen versions in one patch")
    merged = _merged_over_chain(config.words, config.seed)
    tell("dead bands", after=1)
    limits = _limits(config)
    report = PatchReport(cases=cases, merged_over_chain=merged, bands=_bands(config), history=history, limits=limits)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "patches.json").write_text(
            json.dumps(as_document(report, seed=config.seed, words=config.words), indent=1) + "\n", encoding="utf-8"
        )
        (out / "patches-table.md").write_text(as_markdown(report) + "\n", encoding="utf-8")
        if report.bands:
            (out / "bands-table.md").write_text(bands_as_markdown(report.bands) + "\n", encoding="utf-8")
        if report.history:
            (out / "history-table.md").write_text(history_as_markdown(report.history) + "\n", encoding="utf-8")
        plot(report, out / "patches.png")
    except OSError as error:
        raise MachineError(f"cannot write to {out}: {error}", remedy="Choose another folder with --out.") from error
    return report


def _measure(updates: Updates, repeats: int) -> Case:
    pairs = updates.pairs[-_MOST_PAIRS:]
    changes = sum(int(np.count_nonzero(old != new)) for old, new in pairs)
    entropy = sum(entropy_bits(old, new) for old, new in pairs) / changes
    rows = {
        name: _row(codec, pairs, changes, entropy, repeats, name) for name, codec in codecs(updates.word_type).items()
    }
    words = sum(len(old) for old, _ in pairs)
    return Case(name=updates.name, updates=len(pairs), changed_share=changes / words, codecs=rows)


def _row(
    codec: Codec, pairs: Sequence[tuple[Words, Words]], changes: int, entropy: float, repeats: int, name: str
) -> CodecRow:
    encode, decode = codec
    sizes = encode_s = decode_s = 0.0
    for old, new in pairs:
        spent_s, sent = _best_time(encode, repeats, old, new)
        encode_s += spent_s
        spent_s, got = _best_time(decode, repeats, old, sent)
        decode_s += spent_s
        if not np.array_equal(got, new):
            raise IntegrityError(f"{name} did not reproduce the new words")
        sizes += sent_bytes(sent)
    weight_bytes = sum(new.nbytes for _, new in pairs)
    return CodecRow(
        bits_per_change=8 * sizes / changes,
        ratio=weight_bytes / sizes,
        entropy_bits_per_change=entropy,
        encode_mb_s=weight_bytes / encode_s / 1e6,
        decode_mb_s=weight_bytes / decode_s / 1e6,
    )


def _best_time(work: Callable[..., Any], repeats: int, *arguments: Any) -> tuple[float, Any]:
    """(shortest CPU time of `repeats` calls in seconds, result), after a warm-up call that may compile."""
    result, times = work(*arguments), []
    for _ in range(repeats):
        begun = time.process_time()
        work(*arguments)
        times.append(time.process_time() - begun)
    return max(min(times), 1e-9), result


def _limits(config: PatchBenchConfig) -> Limits:
    """Speeds that no codec can exceed, on words as many as a simulated segment's."""
    words, _ = adam_versions(config.words, LEARNING_RATES[0], 0, config.seed)
    copy_s, other = _best_time(words.copy, config.repeats)
    digest_s, _ = _best_time(lambda: (words_digest(words), words_digest(other)), config.repeats)
    return Limits(copy_mb_s=words.nbytes / copy_s / 1e6, digests_mb_s=words.nbytes / digest_s / 1e6)


def _merged_over_chain(words: int, seed: int) -> float:
    """Size of one merged patch over the sum of the chain's, at the lowest learning rate."""
    encode, _ = codecs(BF16)[f"{PRODUCT} ({fastest_kernels().name})"]
    old, versions = adam_versions(words, LEARNING_RATES[0], MERGED_VERSIONS, seed)
    chain = sum(sent_bytes(encode(a, b)) for a, b in pairwise([old, *versions]))
    return sent_bytes(encode(old, versions[-1])) / chain


def _bands(config: PatchBenchConfig) -> list[BandRow]:
    if not config.bands:
        return []
    chains = chain.from_iterable(
        (
            simulated_chains(config.words // 4, _BANDED_VERSIONS, config.seed),
            [] if config.run is None else run_chains(config.run),
        )
    )
    return [row for versions in chains for row in measure_bands(versions, config.bands)]
