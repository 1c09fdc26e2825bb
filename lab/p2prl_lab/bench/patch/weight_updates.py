"""Weight updates that `p2prl bench patch` measures: simulated Adam, LoRA adapters, and those of a real run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.learner.journal.journal import Journal
from p2prl.learner.published_policies import chained_weights
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.patches.words import BF16, WORD_TYPES, Words, WordType
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import PolicyManifest, RunManifest
from p2prl_lab.bench.patch.simulated_training import adam_training, adam_versions, bf16, lora_versions

LEARNING_RATES = (1e-6, 3e-6, 1e-5)
"""Learning rates that change about 1, 2.6 and 7 % of bf16 words."""

LORA_RATE = 1e-5
"""A tenth of the customary rate of adapters, so that some words stay unchanged."""


@dataclass(frozen=True, kw_only=True)
class Updates:
    """Pairs of words before and after an update."""

    name: str
    word_type: WordType
    pairs: tuple[tuple[Words, Words], ...]


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Consecutive versions of one training run, as full weights."""

    name: str
    word_type: WordType
    versions: Iterable[Words]
    """The first version, then `count` more; can be iterated once."""
    count: int
    """Versions after the first; at least 1."""


def simulated_updates(words: int, seed: int) -> Iterator[Updates]:
    """One Adam update of `words` weights at each learning rate, and one of LoRA adapters of as many words."""
    for rate in LEARNING_RATES:
        old, (new,) = adam_versions(words, rate, 1, seed)
        yield Updates(name=f"adam lr {rate:g}, bf16", word_type=BF16, pairs=((old, new),))
    old, new = lora_versions(words // 4, LORA_RATE, seed)
    yield Updates(name=f"lora lr {LORA_RATE:g}, bf16", word_type=BF16, pairs=((old, new),))


def simulated_chains(words: int, count: int, seed: int) -> Iterator[Chain]:
    """`count` consecutive Adam updates of `words` weights at each learning rate, computed lazily."""
    for rate in LEARNING_RATES:
        versions = islice(adam_training(words, rate, seed), count + 1)
        yield Chain(name=f"adam lr {rate:g}, bf16", word_type=BF16, versions=versions, count=count)


def run_updates(run: Path) -> list[Updates]:
    """Updates between the versions stored in a run: in its own word type, and rounded to bf16.

    `ConfigError` when `run` is not a run folder, or has no two consecutive versions that differ.
    """
    updates = []
    for chain in run_chains(run):
        pairs = tuple((a, b) for a, b in pairwise(chain.versions) if not np.array_equal(a, b))
        if pairs:  # rounding can make all versions equal
            updates.append(Updates(name=chain.name, word_type=chain.word_type, pairs=pairs))
    return updates


def run_chains(run: Path) -> list[Chain]:
    """The longest sequence of versions stored in a run: unchanged, and rounded to bf16.

    `ConfigError` as for `run_updates`.
    """
    try:
        manifest = body_of(open_envelope((run / "run.manifest").read_bytes(), now=None), RunManifest)
        manifest.check()
    except (OSError, RemoteProtocolError) as error:
        raise ConfigError(f"{run} is not a run folder", remedy="Create one: p2prl demo --out DIR") from error
    word_type = WORD_TYPES[manifest.dtype]
    versions = _longest_stretch(_published(run, word_type))
    if all(np.array_equal(a, b) for a, b in pairwise(versions)):
        raise ConfigError(f"{run} has no two consecutive versions that differ", remedy="Train the run longer first.")
    count = len(versions) - 1
    chains = [Chain(name=f"{manifest.name}, {word_type.name}", word_type=word_type, versions=versions, count=count)]
    if manifest.dtype == "float32":
        rounded = tuple(bf16(words.view(np.float32)) for words in versions)
        chains.append(Chain(name=f"{manifest.name}, bfloat16", word_type=BF16, versions=rounded, count=count))
    return chains


def _longest_stretch(published: Iterable[tuple[int, Words]]) -> tuple[Words, ...]:
    stretches: list[list[Words]] = [[]]
    before = -1
    for version, words in published:
        if version != before + 1:
            stretches.append([])
        stretches[-1].append(words)
        before = version
    longest: list[Words] = max(stretches, key=len)
    return tuple(longest)


def _published(run: Path, word_type: WordType) -> Iterator[tuple[int, Words]]:
    """(version, words) of every version on disk."""
    journal = Journal(run / "journal.db")
    blobs = DiskBlobStore(run / "blobs")
    try:
        for raw in journal.policies.since_step(0):
            policy = body_of(open_envelope(raw, now=None), PolicyManifest)
            path = blobs.path(policy.weights.root)
            if (chained := chained_weights(run / "blobs", policy)) is not None:
                yield policy.version, np.frombuffer(chained, dtype=word_type.dtype)
            elif path.is_file():
                yield policy.version, np.fromfile(path, dtype=word_type.dtype)
    finally:
        journal.close()
        blobs.close()
