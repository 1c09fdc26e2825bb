"""Fuzz the patch codec: round trips of words with any bit pattern, and damaged bodies against the decoder.

    python -m p2prl_lab.fuzz_patches --examples 10000 --mutations 10000

`--examples` runs each property of `p2prl_lab.testing.patch_properties` on that many cases: NaN, both zeros, infinities,
subnormals, no words at all. `--mutations` damages bodies of all codecs; a body that is not rejected must decode to the
right words, the same in both kernels, within a second of CPU time and within twice the memory of an intact body.
Prints a report as JSON; exits 1 when a property fails. Needs hypothesis.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.patches.decode import decode_segment
from p2prl.patches.dense_codecs import ZstdCoder, encode_planes
from p2prl.patches.encode import encode_segment
from p2prl.patches.kernel_choice import fastest_kernels
from p2prl.patches.kernels import NUMPY_KERNELS, Kernels
from p2prl.patches.sparse_codec import encode_ec2
from p2prl.patches.stream_format import Codec, SegmentHeader
from p2prl.patches.words import BF16, Words
from p2prl_lab.bench.patch.simulated_training import adam_versions
from p2prl_lab.progress_lines import say
from p2prl_lab.testing import patch_properties as properties

SLOWEST_S = 1.0
MEMORY_OVER_HONEST = 2.0
"""Memory bound relative to the intact body; a damaged one may declare other frames within the same limits."""

Damageable = tuple[Words, Words, SegmentHeader, bytes]
KERNELS = (NUMPY_KERNELS, fastest_kernels())


def examples(count: int) -> dict[str, Any]:
    """Check each property on `count` cases. Hypothesis raises on a failure."""
    report = {}
    for name, strategies in (
        ("check_round_trip", [properties.versions()]),
        ("check_each_codec", [properties.versions()]),
        ("check_both_ways", [properties.versions()]),
        ("check_small_pair", [properties.pairs_of_words, properties.pairs_of_words]),
    ):
        seen: list[int] = []
        runner: Any = given(*strategies)(_counting(getattr(properties, name), seen))  # type: ignore[no-untyped-call]
        settings(max_examples=count, deadline=None, database=None)(runner)()
        say(f"{name}: {len(seen)} cases")
        report[name] = len(seen)
    return report


def _counting(inner: Callable[..., None], seen: list[int]) -> Callable[..., None]:
    """Wrap a property to count its cases, with the same number of parameters because Hypothesis inspects them."""

    def one(case: Any) -> None:
        seen.append(1)
        inner(case)

    def two(old: Any, new: Any) -> None:
        seen.append(1)
        inner(old, new)

    return two if len(inspect.signature(inner).parameters) == 2 else one


def damageable(seed: int) -> list[Damageable]:
    """Intact bodies of every codec, for sparse and dense changes, including words of every kind."""
    rng = np.random.default_rng(seed)
    cases = []
    for learning_rate, words in ((1e-6, 40_000), (1e-5, 40_000), (1e-3, 8_000), (1e-6, 500)):
        old, (new,) = adam_versions(words, learning_rate, 1, seed)
        new[rng.integers(0, words, 6)] = (0x7FC0, 0x8000, 0, 0x7F80, 0xFF80, 0xFFFF)
        header, body = encode_segment(old, new, BF16, NUMPY_KERNELS)
        cases.append((old, new, header, body))
        body = encode_ec2(old, new, BF16, NUMPY_KERNELS)
        cases.append((old, new, replace(header, codec=Codec.EC2, body_bytes=len(body)), body))
        body = encode_planes(old, new, BF16, ZstdCoder())
        cases.append((old, new, replace(header, codec=Codec.PLANES, body_bytes=len(body)), body))
    return cases


def damaged(case: Damageable, rng: np.random.Generator) -> tuple[SegmentHeader, bytes]:
    """Change one to three bytes, half the time near the beginning; sometimes truncate the body or change its codec."""
    _, _, header, body = case
    data = bytearray(body)
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(0, min(len(data), 100) if rng.random() < 0.5 else len(data)))
        data[place] ^= int(rng.integers(1, 256))
    bad = bytes(data[: rng.integers(len(data) + 1)] if rng.random() < 0.1 else data)
    codec = list(Codec)[int(rng.integers(len(Codec)))] if rng.random() < 0.05 else header.codec
    return replace(header, codec=codec, body_bytes=len(bad)), bad


def decoded(old: Words, header: SegmentHeader, body: bytes, kernels: Kernels) -> tuple[Any, float, int]:
    """(words or the error's name, CPU seconds, peak bytes allocated)."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    began = time.process_time()
    try:
        result: Any = decode_segment(old, header, body, BF16, kernels)
    except (RemoteProtocolError, IntegrityError) as error:
        result = type(error).__name__
    spent_s = time.process_time() - began
    return result, spent_s, tracemalloc.get_traced_memory()[1] - before


def attack(mutations: int, seed: int) -> dict[str, Any]:
    """Damage bodies and count the outcomes."""
    rng = np.random.default_rng(seed)
    cases = damageable(seed)
    for kernels in KERNELS:
        decoded(cases[0][0], cases[0][2], cases[0][3], kernels)  # compiled before anything is measured
    tracemalloc.start()
    honest = [max(decoded(old, header, body, k)[2] for k in KERNELS) for old, _, header, body in cases]
    by_length: dict[int, int] = {}
    for (old, *_), most in zip(cases, honest, strict=True):
        by_length[len(old)] = max(most, by_length.get(len(old), 0))
    outcomes: Counter[str] = Counter()
    slowest_s = memory = 0.0
    for _ in range(mutations):
        case = cases[rng.integers(len(cases))]
        old, new = case[:2]
        header, bad = damaged(case, rng)
        seen = []
        for kernels in KERNELS:
            result, spent_s, allocated = decoded(old, header, bad, kernels)
            slowest_s = max(slowest_s, spent_s)
            memory = max(memory, allocated / by_length[len(old)])
            if not isinstance(result, str):
                result = "the right words" if np.array_equal(result, new) else "wrong words"
            seen.append(result)
        outcomes[seen[0] if seen[0] == seen[1] else "kernels differ"] += 1
    tracemalloc.stop()
    return {
        "mutations": mutations,
        "outcomes": dict(sorted(outcomes.items())),
        "slowest_decode_s": round(slowest_s, 4),
        "most_memory_over_a_sound_body": round(memory, 3),
    }


def main() -> int:
    """Run the requested parts; exit status 1 when a property fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=0)
    parser.add_argument("--mutations", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="of the mutations")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"seed": arguments.seed}
    if arguments.examples:
        report["examples"] = examples(arguments.examples)
    if arguments.mutations:
        report |= attack(arguments.mutations, arguments.seed)
    print(json.dumps(report, indent=1, sort_keys=True))
    broken = {"wrong words", "kernels differ"} & set(report.get("outcomes", ()))
    too_slow = report.get("slowest_decode_s", 0.0) > SLOWEST_S
    too_large = report.get("most_memory_over_a_sound_body", 0.0) > MEMORY_OVER_HONEST
    return int(bool(broken) or too_slow or too_large)


if __name__ == "__main__":
    sys.exit(main())
