"""Report of the patch benchmark: figures of every codec, bounds with their verdicts, and JSON, Markdown and PNG."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2prl.patches.kernel_choice import fastest_kernels
from p2prl_lab.bench.patch.compared_codecs import EC2, INDEX, PLANES, PRODUCT, ROWS, XOR
from p2prl_lab.bench.patch.dead_bands import BandRow
from p2prl_lab.bench.patch.history_gain import BOTH, NONE, VersionRow, over_entropy
from p2prl_lab.bench.patch.weight_updates import LEARNING_RATES


@dataclass(frozen=True, kw_only=True)
class CodecRow:
    """Results of one codec on one kind of update."""

    bits_per_change: float
    """Bits sent for each changed word."""
    ratio: float
    """Bytes of the weights over bytes sent."""
    entropy_bits_per_change: float
    """Plug-in entropy of position and step given the exponent."""
    encode_mb_s: float
    """Megabytes of weights per second of processor time, one core."""
    decode_mb_s: float


@dataclass(frozen=True, kw_only=True)
class Case:
    """Results of all codecs on one kind of update."""

    name: str
    updates: int
    changed_share: float
    codecs: dict[str, CodecRow]


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A bound and its measured figure."""

    text: str
    bound: float
    at_least: bool
    measured: float

    @property
    def met(self) -> bool:
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Speeds that no codec can exceed, megabytes of weights per second of processor time."""

    copy_mb_s: float
    """Copying the words in memory."""
    digests_mb_s: float
    """BLAKE3 of the words before and of those after."""


@dataclass(frozen=True, kw_only=True)
class PatchReport:
    """Figures of the benchmark."""

    cases: list[Case]
    merged_over_chain: float
    """Size of one patch across sixteen versions, divided by the sum of sixteen patches."""
    bands: list[BandRow]
    """Rows of the simulated updates at each learning rate and of the run's versions, for each band."""
    history: list[VersionRow]
    """Rows of the policy that the benchmark trained; empty if it trained none."""
    limits: Limits

    def demands(self) -> list[Bound]:
        """Bounds and their figures, on simulated updates that change 1, 2.6 and 7 % of the words."""
        bounds = []
        fast = f"{PRODUCT} ({fastest_kernels().name})"
        for case, most_bits in zip(self.cases, (7.5, 6.7, 6.0), strict=False):
            rows = case.codecs
            bits, share = rows[fast].bits_per_change, f"{case.changed_share:.1%} changed"
            fast_mb_s, numpy_mb_s = (1000, 100) if case is self.cases[0] else (200, 40)
            bounds += [
                _at_most(f"{share}: bits per change", most_bits, bits),
                _at_most(f"{share}: over the entropy", 1.02, bits / rows[fast].entropy_bits_per_change),
                _at_least(f"{share}: smaller than PULSE's layout", 3.0, rows[ROWS].bits_per_change / bits),
                _at_least(f"{share}: numpy encodes, MB/s", numpy_mb_s, rows[f"{PRODUCT} (numpy)"].encode_mb_s),
                _at_least(f"{share}: numpy decodes, MB/s", numpy_mb_s, rows[f"{PRODUCT} (numpy)"].decode_mb_s),
                _at_least(f"{share}: {fast} encodes, MB/s", fast_mb_s, rows[fast].encode_mb_s),
                _at_least(f"{share}: {fast} decodes, MB/s", fast_mb_s, rows[fast].decode_mb_s),
            ]
        if self.history:
            bounds += [
                _at_most("trained policy: over the entropy", 1.02, over_entropy(self.history, NONE)),
                # Before version 1 there is no history.
                _at_most(
                    "trained policy, with history: over the entropy", 0.97, over_entropy(self.history, BOTH, since=2)
                ),
            ]
        return [*bounds, _at_most("16 versions in one patch, of the chain", 0.45, self.merged_over_chain)]


def _at_most(text: str, bound: float, measured: float) -> Bound:
    return Bound(text=text, bound=bound, at_least=False, measured=measured)


def _at_least(text: str, bound: float, measured: float) -> Bound:
    return Bound(text=text, bound=bound, at_least=True, measured=measured)


def as_document(report: PatchReport, *, seed: int, words: int) -> dict[str, Any]:
    """The report as a JSON object."""
    return {
        "seed": seed,
        "words": words,
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
        "history": [vars(row) for row in report.history],
        "limits": vars(report.limits),
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
    for name, speed in (("memory copy", report.limits.copy_mb_s), ("BLAKE3 twice", report.limits.digests_mb_s)):
        lines.append(f"| limit | | {name} | | | | {speed:.0f} | {speed:.0f} |")
    return "\n".join(lines)


def plot(report: PatchReport, path: Path) -> None:
    """Draw bits per change against the share of changed words, on the simulated updates of full models."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    cases = report.cases[: len(LEARNING_RATES)]
    shares = [100 * case.changed_share for case in cases]
    for name in (EC2, PLANES, XOR, ROWS, INDEX):
        axes.plot(shares, [case.codecs[name].bits_per_change for case in cases], marker="o", label=name)
    bound = [case.codecs[EC2].entropy_bits_per_change for case in cases]
    axes.plot(shares, bound, linestyle="--", color="black", label="entropy given the exponent")
    axes.set(xlabel="words changed, %", ylabel="bits per changed word", xscale="log", ylim=(0, 50))
    axes.set_xticks(shares, [f"{share:.1f}" for share in shares])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1, 0.94))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
