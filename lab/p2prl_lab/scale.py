"""Needs of a run of a large model, on paper: the project's measured figures, scaled by the size of the weights.

    python -m p2prl_lab.scale              # the tables of docs/benchmarks/scale.md
    python -m p2prl_lab.scale --spans      # measure again how patches over several updates shrink; a minute

Nothing here was run at these sizes. Times and bytes grow in proportion to the weights, since every step that they come
from handles one segment of 4 Mi words after the other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from p2prl.config.requirements import SPARSE_PATCHES, requirements_of
from p2prl.learner.publishing.patch_choice import BRIDGE_EVERY, SPANS
from p2prl.patches.encode import encode_segment
from p2prl.patches.kernel_choice import fastest_kernels
from p2prl.patches.stream_format import SEGMENT_WORDS
from p2prl.patches.words import BF16
from p2prl.planning.measured_figures import MEASURED, MOST_UPLOAD_MBIT, OFFERED_SHARE, PATCH_RATIOS
from p2prl.protocol.kinds import Role
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm.policies.retention import VERSIONS_KEPT
from p2prl_lab.bench.patch.simulated_training import adam_training
from p2prl_lab.bench.spread.home_links import HOME_LINKS

PAGES = Path(__file__).parents[2] / "docs" / "benchmarks"


SIZES = {"7B": 7_615_616_512, "32B": 32_763_876_352}
"""Parameters of Qwen2.5 at these names."""

VOLUNTEERS, STALENESS, UPDATES_A_VERSION = 1_000, 128, 2
LEARNER_MBIT = 100.0
INTERVAL_S = 600.0
"""Time from one version to the next, for bytes a day."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a model with this many parameters in bf16."""

    parameters: int

    @property
    def weights(self) -> float:
        """Bytes of a version."""
        return self.parameters * 2.0

    @property
    def patch(self) -> float:
        """Bytes of the patch from one version to the next."""
        return self.weights / PATCH_RATIOS[UPDATES_A_VERSION]

    @property
    def window(self) -> int:
        """Versions a learner keeps and serves."""
        return STALENESS // UPDATES_A_VERSION + 2

    @property
    def spans(self) -> float:
        """Bytes of the regular patches that a version has on average, a long one every few versions."""
        return sum(self.weights / PATCH_RATIOS[span * UPDATES_A_VERSION] / span for span in SPANS)

    @property
    def keyframe(self) -> float:
        """Bytes of a keyframe."""
        return self.weights / MEASURED["keyframe_ratio"].value

    @property
    def keyframes(self) -> int:
        """Keyframes in the window."""
        return -(-self.window // BRIDGE_EVERY)

    def scaled(self, name: str) -> float:
        """A measured time, in proportion to the weights."""
        return MEASURED[name].value * self.weights / MEASURED["version_bytes"].value

    @property
    def bound_s(self) -> float:
        """Least time in which a patch can reach all volunteers at home links (Kumar and Ross, 2006)."""
        source = LEARNER_MBIT * OFFERED_SHARE
        uplink = sum(min(up * OFFERED_SHARE, MOST_UPLOAD_MBIT) * share for _, up, share in HOME_LINKS)
        slowest = min(down for down, _, _ in HOME_LINKS)
        megabits = self.patch * 8 / 1e6
        together = VOLUNTEERS * megabits / (source + VOLUNTEERS * uplink)
        return max(megabits / source, megabits / slowest, together)

    @property
    def chain(self) -> float:
        """The learner's weight chain: weights once and inverse patches, which have the size of the patches."""
        return self.weights + self.window * self.spans

    @property
    def published(self) -> float:
        """Patches in files of their own, and the keyframes."""
        return self.window * self.spans + self.keyframes * self.keyframe

    @property
    def volunteer_chain(self) -> float:
        """What its versions take of it: the weights, a patch to pass on for each, and inverse patches to the older."""
        return self.weights + (2 * VERSIONS_KEPT[Role.VOLUNTEER] - 1) * self.patch

    @property
    def volunteer_disk(self) -> float:
        """Disk of a volunteer, as it is told before it joins, with room for one version more."""
        manifest = run_manifest_of(identity_of("learner"), weight_bytes=int(self.weights))
        return float(requirements_of(manifest, Role.VOLUNTEER).disk_bytes + self.weights)


def rows() -> Iterator[tuple[str, str, list[str]]]:
    """(quantity, how it is computed, its value for each size)."""
    runs = [Run(parameters) for parameters in SIZES.values()]
    kept = VERSIONS_KEPT[Role.VOLUNTEER]
    yield "weights W, GB", "2 bytes a parameter", [gigabytes(run.weights) for run in runs]
    yield "patch of a version p, MB", f"W / {PATCH_RATIOS[2]}", [f"{run.patch / 1e6:,.0f}" for run in runs]
    yield (
        "all regular patches of a version q, MB",
        " + ".join(f"W / {PATCH_RATIOS[2 * span]}{f' / {span}' if span > 1 else ''}" for span in SPANS),
        [f"{run.spans / 1e6:,.0f}" for run in runs],
    )
    yield (
        "**learner**: weight chain, GB",
        f"W + {runs[0].window} q",
        [gigabytes(run.chain) for run in runs],
    )
    yield (
        "its published patches and keyframes, GB",
        f"{runs[0].window} q + {runs[0].keyframes} W / {MEASURED['keyframe_ratio'].value}",
        [gigabytes(run.published) for run in runs],
    )
    yield (
        "its memory beside the trainer, GB",
        "W + .204",
        [gigabytes(run.weights + MEASURED["beyond_copy_bytes"].value) for run in runs],
    )
    yield "training waits, s", ".090 W / .988", [f"{run.scaled('waits_s'):.0f}" for run in runs]
    yield "head on two cores, s", "1.7 W / .988", [f"{run.scaled('head_s'):.0f}" for run in runs]
    yield (
        "an older version in a file, for replay, s",
        "2.4 W / .988",
        [f"{run.scaled('switch_s'):.0f}" for run in runs],
    )
    yield (
        "**volunteers**: a patch at 95 % of them, s",
        "1.06 max(p / u, p / d, N p / (u + N m))",
        [f"{MEASURED['t95_over_bound'].value * run.bound_s:.0f}" for run in runs],
    )
    yield (
        "the learner's upload of it, MB",
        "2.08 p",
        [f"{MEASURED['copies'].value * run.patch / 1e6:,.0f}" for run in runs],
    )
    yield (
        "one volunteer's download a day, GB",
        f"p · 86,400 / {INTERVAL_S:.0f}",
        [gigabytes(run.patch * 86_400 / INTERVAL_S) for run in runs],
    )
    yield (
        "a newcomer's first version at 100 Mbit/s, min",
        f"W / {MEASURED['keyframe_ratio'].value} / 12.5 MB/s",
        [f"{run.keyframe / 12.5e6 / 60:.0f}" for run in runs],
    )
    yield (
        "decoding on one core, s",
        "W / 1,058 MB/s",
        [f"{run.weights / MEASURED['decode_bytes_s'].value:.0f}" for run in runs],
    )
    yield f"its {kept} versions on disk, GB", f"W + {2 * kept - 1} p", [gigabytes(run.volunteer_chain) for run in runs]
    yield (
        "the most it is told they may take, GB",
        f"3 W + {2 * kept - 1} W / {SPARSE_PATCHES}",
        [gigabytes(run.volunteer_disk) for run in runs],
    )


def table() -> str:
    """The figures in Markdown."""
    lines = [f"| | computed | {' | '.join(SIZES)} |", "|---|---|" + "---:|" * len(SIZES)]
    lines += [f"| {name} | {formula} | {' | '.join(values)} |" for name, formula, values in rows()]
    return "\n".join(lines)


def gigabytes(size_bytes: float) -> str:
    """A size in GB with one digit after the point."""
    return f"{size_bytes / 1e9:,.1f}"


def measured_ratios() -> Iterator[tuple[int, float]]:
    """(updates, size of the weights over that of the patch over them) of one segment, as in `p2prl bench patch`."""
    versions = islice(adam_training(SEGMENT_WORDS, 1e-6, 0), max(PATCH_RATIOS) + 1)
    first = next(versions)
    for updates, words in enumerate(versions, 1):
        if updates in PATCH_RATIOS:
            header, body = encode_segment(first, words, BF16, fastest_kernels())
            yield updates, words.nbytes / (len(header.pack()) + len(body))


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", action="store_true", help="measure patches over several updates")
    if parser.parse_args().spans:
        for updates, ratio in measured_ratios():
            print(f"{updates:4d} {ratio:6.1f}", flush=True)
    else:
        print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
