"""The patch benchmark: size and speed of weight patches beside other layouts, and the demands made on them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from p2prl.bench.patch.dead_bands import BandRow, bands_as_markdown, measure_bands
from p2prl.bench.patch.rival_codecs import EC1, FLAT, INDEX, PLANES, PRODUCT, ROWS, XOR, Codec, codecs, sent_bytes
from p2prl.bench.patch.weight_updates import (
    LEARNING_RATES,
    Updates,
    run_chains,
    run_updates,
    simulated_chains,
    simulated_updates,
)
from p2prl.errors import IntegrityError, MachineError, require
from p2prl.patches.dead_band import widest_band_ulp
from p2prl.patches.kernel_choice import fastest_kernels
from p2prl.patches.simulated_training import adam_versions, entropy_bits
from p2prl.patches.stream_format import SEGMENT_WORDS
from p2prl.patches.words import BF16, Words

MERGED_VERSIONS = 16
_BANDED_VERSIONS = 256
"""Simulated for dead bands: many, because at first no word has come to the edge of its band."""

_MOST_PAIRS = 32
"""Of a run's updates, the last so many: more say the same again."""


@dataclass(frozen=True, kw_only=True)
class PatchBenchConfig:
    """What is measured."""

    words: int = SEGMENT_WORDS
    """Words of a simulated segment."""
    repeats: int = 3
    """Speeds are the best of so many."""
    run: Path | None = None
    """A run folder whose published versions are measured too."""
    bands: tuple[int, ...] = ()
    """Dead bands to publish the same updates with, ulp of bf16."""
    seed: int = 0

    def __post_init__(self) -> None:
        require("words", self.words, 65_536 <= self.words <= SEGMENT_WORDS, f"65536 to {SEGMENT_WORDS}")
        require("repeats", self.repeats, 1 <= self.repeats <= 100, "1 to 100")
        widest = widest_band_ulp(BF16)
        for band in self.bands:
            require("bands", band, 0 <= band <= widest, f"0 to {widest}")


@dataclass(frozen=True, kw_only=True)
class CodecRow:
    """One codec on one kind of update."""

    bits_per_change: float
    """Bits sent for each word that changed."""
    ratio: float
    """Bytes of the weights over bytes sent."""
    entropy_bits_per_change: float
    """Plug-in entropy of position and step given the exponent."""
    encode_mb_s: float
    """Megabytes of weights per second of processor time, one core."""
    decode_mb_s: float


@dataclass(frozen=True, kw_only=True)
class Case:
    """All codecs on one kind of update."""

    name: str
    updates: int
    changed_share: float
    codecs: dict[str, CodecRow]


@dataclass(frozen=True, kw_only=True)
class Demand:
    """One line of the table of demands."""

    text: str
    bound: float
    at_least: bool
    measured: float

    @property
    def met(self) -> bool:
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound


@dataclass(frozen=True, kw_only=True)
class PatchReport:
    """What was measured."""

    cases: list[Case]
    merged_over_chain: float
    """One patch over sixteen versions, over the sum of sixteen patches."""
    bands: list[BandRow]
    """Simulated updates at each learning rate and the versions of the run, with each band."""

    def demands(self) -> list[Demand]:
        """The demands, judged on the simulated updates at 1, 2.6 and 7 % of changed words."""
        judged = []
        fast = f"{PRODUCT} ({fastest_kernels().name})"
        for case, most_bits in zip(self.cases, (7.5, 6.7, 6.0), strict=False):
            rows = case.codecs
            bits, share = rows[fast].bits_per_change, f"{case.changed_share:.1%} changed"
            judged += [
                _at_most(f"{share}: bits per change", most_bits, bits),
                _at_most(f"{share}: over the entropy", 1.08, bits / rows[fast].entropy_bits_per_change),
                _at_least(f"{share}: smaller than PULSE's layout", 3.0, rows[ROWS].bits_per_change / bits),
                _at_least(f"{share}: numpy encodes, MB/s", 40, rows[f"{PRODUCT} (numpy)"].encode_mb_s),
                _at_least(f"{share}: numpy decodes, MB/s", 40, rows[f"{PRODUCT} (numpy)"].decode_mb_s),
                _at_least(f"{share}: {fast} encodes, MB/s", 200, rows[fast].encode_mb_s),
                _at_least(f"{share}: {fast} decodes, MB/s", 200, rows[fast].decode_mb_s),
            ]
        return [*judged, _at_most("16 versions in one patch, of the chain", 0.45, self.merged_over_chain)]


def run_patch_bench(
    config: PatchBenchConfig, out: Path, *, on_progress: Callable[[str, float], None] | None = None
) -> PatchReport:
    """Measure, and write `patches.json`, `patches-table.md` and `patches.png` into `out`; with bands `bands-table.md`.

    Sizes follow from the seed and the version of zstd; speeds are the machine's. `IntegrityError` when a codec does
    not give the new words back, `ConfigError` when the run has nothing to measure.
    """
    real = [] if config.run is None else run_updates(config.run)
    total = len(LEARNING_RATES) + 1 + len(real) + 1 + bool(config.bands)
    cases: list[Case] = []

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
    tell("sixteen versions in one")
    merged = _merged_over_chain(config.words, config.seed)
    tell("dead bands", after=1)
    report = PatchReport(cases=cases, merged_over_chain=merged, bands=_bands(config))
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "patches.json").write_text(json.dumps(as_document(config, report), indent=1) + "\n", encoding="utf-8")
        (out / "patches-table.md").write_text(as_markdown(report) + "\n", encoding="utf-8")
        if report.bands:
            (out / "bands-table.md").write_text(bands_as_markdown(report.bands) + "\n", encoding="utf-8")
        _plot(report, out / "patches.png")
    except OSError as error:
        raise MachineError(f"cannot write to {out}: {error}", remedy="Choose another folder with --out.") from error
    return report


def as_document(config: PatchBenchConfig, report: PatchReport) -> dict[str, Any]:
    """The report as JSON holds it."""
    return {
        "seed": config.seed,
        "words": config.words,
        "cases": [
            {
                "name": case.name,
                "updates": case.updates,
                "changed_share": round(case.changed_share, 5),
                "codecs": {
                    name: {key: round(value, 4) for key, value in vars(row).items()}
                    for name, row in case.codecs.items()
                },
            }
            for case in report.cases
        ],
        "merged_16_over_chain": round(report.merged_over_chain, 4),
        "bands": [vars(row) for row in report.bands],
        "demands": [{**vars(demand), "met": demand.met} for demand in report.demands()],
    }


def as_markdown(report: PatchReport) -> str:
    """The table."""
    lines = [
        "| update | changed | codec | bits per change | of the entropy | ratio | encode MB/s | decode MB/s |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for case in report.cases:
        for name, row in case.codecs.items():
            over = row.bits_per_change / row.entropy_bits_per_change
            lines.append(
                f"| {case.name} | {case.changed_share:.2%} | {name} | {row.bits_per_change:.2f} | {over:.3f} "
                f"| {row.ratio:.1f} | {row.encode_mb_s:.0f} | {row.decode_mb_s:.0f} |"
            )
    return "\n".join(lines)


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
            raise IntegrityError(f"{name} did not give the new words back")
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
    """(least processor time of `repeats` calls in seconds, result), after one call that may compile."""
    result, times = work(*arguments), []
    for _ in range(repeats):
        begun = time.process_time()
        work(*arguments)
        times.append(time.process_time() - begun)
    return max(min(times), 1e-9), result


def _merged_over_chain(words: int, seed: int) -> float:
    """At the lowest learning rate."""
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


def _at_most(text: str, bound: float, measured: float) -> Demand:
    return Demand(text=text, bound=bound, at_least=False, measured=measured)


def _at_least(text: str, bound: float, measured: float) -> Demand:
    return Demand(text=text, bound=bound, at_least=True, measured=measured)


def _plot(report: PatchReport, path: Path) -> None:
    """Bits per change against the share of changed words, on the simulated updates of whole models."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    cases = report.cases[: len(LEARNING_RATES)]
    shares = [100 * case.changed_share for case in cases]
    for name in (EC1, FLAT, PLANES, XOR, ROWS, INDEX):
        axes.plot(shares, [case.codecs[name].bits_per_change for case in cases], marker="o", label=name)
    bound = [case.codecs[EC1].entropy_bits_per_change for case in cases]
    axes.plot(shares, bound, linestyle="--", color="black", label="entropy given the exponent")
    axes.set(xlabel="words changed, %", ylabel="bits per changed word", xscale="log", ylim=(0, 50))
    axes.set_xticks(shares, [f"{share:.1f}" for share in shares])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1, 0.94))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
