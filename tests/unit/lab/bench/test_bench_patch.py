"""The patch benchmark: round trips of its codecs, and sizes that can be counted by hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from p2prl.cli.app import app
from p2prl.errors import ConfigError
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.sparse_codec import encode_ec2
from p2prl.patches.stream_format import HEADER_BYTES
from p2prl.patches.words import BF16, FP32, WordType
from p2prl_lab.bench.patch.benchmark import TRAINED_UPDATES, PatchBenchConfig, run_patch_bench
from p2prl_lab.bench.patch.compared_codecs import INDEX, RAW, codecs, sent_bytes
from p2prl_lab.bench.patch.dead_bands import bands_as_markdown, measure_bands
from p2prl_lab.bench.patch.history_gain import BOTH, DIRECTION, MOVED, NONE, over_entropy
from p2prl_lab.bench.patch.report import CodecRow, PatchReport, as_document
from p2prl_lab.bench.patch.simulated_training import entropy_bits, lora_versions
from p2prl_lab.bench.patch.weight_updates import Chain, run_chains, run_updates
from tests.json_shapes import breaches
from tests.unit.learner.small_run import SmallRun

WORDS = 65_536
CONFIG = PatchBenchConfig(words=WORDS, repeats=1, bands=(0, 1), train="chain4@24x1")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[PatchReport, Path]:
    out = tmp_path_factory.mktemp("bench")
    return run_patch_bench(CONFIG, out), out


@pytest.mark.parametrize("word_type", [BF16, FP32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("share", [0.0, 0.02, 1.0])
def test_every_codec_round_trips_any_update(word_type: WordType, share: float) -> None:
    rng = np.random.default_rng(3)
    old = rng.integers(0, 1 << word_type.bits, 30_000).astype(word_type.dtype)
    new = old.copy()
    moved = rng.random(len(old)) < share
    moved[:1] = share > 0
    new[moved] += word_type.dtype.type(3)
    for name, (encode, decode) in codecs(word_type).items():
        assert np.array_equal(decode(old, encode(old, new)), new), name


def test_sizes_counted_by_hand(report: tuple[PatchReport, Path]) -> None:
    for case in report[0].cases:
        assert case.codecs[INDEX].bits_per_change == 48.0
        assert case.codecs[RAW].ratio == 1.0
        assert case.codecs[RAW].bits_per_change == pytest.approx(16 / case.changed_share)
        assert case.codecs["patch (numba)"].bits_per_change == case.codecs["patch (numpy)"].bits_per_change
        assert case.codecs["planes"].bits_per_change > case.codecs["ec2"].bits_per_change > 0


def test_entropy_of_a_case_computed_by_hand() -> None:
    """Eight words of one exponent, two move: one up, one down. Position: 8·H(1/4) bits; step: one bit each."""
    old = np.full(8, 0x3F80, dtype=np.uint16)
    new = old.copy()
    new[[1, 5]] = 0x3F81, 0x3F82
    expected = 8 * (0.25 * 2 + 0.75 * np.log2(4 / 3)) + 2
    assert entropy_bits(old, new) == pytest.approx(expected)
    wide_old = np.full(8, 0x3F800000, dtype=np.uint32)
    wide_new = wide_old.copy()
    wide_new[[1, 5]] += np.array([1, 2], dtype=np.uint32)
    assert entropy_bits(wide_old, wide_new) == pytest.approx(expected)


def test_lora_adapters_start_with_zero_half() -> None:
    old, new = lora_versions(20_000, 1e-5, 0)
    first, second = (np.abs((half.astype(np.uint32) << 16).view(np.float32)) for half in (old[:10_000], old[10_000:]))
    assert np.median(first) == pytest.approx(0.02 * 0.6745, rel=0.05)
    assert np.median(second) < 1e-3
    changed = old != new
    assert changed[10_000:].mean() > 0.9 > changed[:10_000].mean()


def test_the_files_hold_what_was_measured(report: tuple[PatchReport, Path]) -> None:
    measured, out = report
    document = json.loads((out / "patches.json").read_text())
    assert document == json.loads(json.dumps(as_document(measured, seed=CONFIG.seed, words=CONFIG.words)))
    assert breaches({**document, "wall_s": 1.0}, "p2prl bench patch") == []
    assert [case["name"] for case in document["cases"]] == [case.name for case in measured.cases]
    assert set(document["cases"][0]["codecs"]["ec2"]) == set(CodecRow.__dataclass_fields__)
    table = (out / "patches-table.md").read_text().splitlines()
    assert len(table) == 2 + sum(len(case.codecs) for case in measured.cases) + 2
    assert [(row["name"], row["band_ulp"]) for row in document["bands"]] == [
        (case.name, band) for case in measured.cases[:3] for band in (0, 1)
    ]
    assert (out / "bands-table.md").read_text().count("\n") == 2 + 6
    assert (out / "patches.png").read_bytes().startswith(b"\x89PNG")
    judged = {demand.text: demand for demand in measured.demands()}
    assert judged["16 versions in one patch, of the chain"].measured == measured.merged_over_chain
    assert 0.2 < measured.merged_over_chain < 0.6


def test_a_trained_policy_is_measured_with_each_context(report: tuple[PatchReport, Path]) -> None:
    measured, out = report
    versions = np.load(out / "versions-chain4@24x1-16-0.npy")
    assert len(versions) == TRAINED_UPDATES + 1
    assert [(row.version, row.context) for row in measured.history] == [
        (version, context) for version in range(1, len(versions)) for context in (NONE, MOVED, DIRECTION, BOTH)
    ]
    document = json.loads((out / "patches.json").read_text())
    assert [row["history"] for row in document["history"][:4]] == [False, False, False, True]
    for row in measured.history:
        before, after = versions[row.version - 1], versions[row.version]
        assert row.changed_share == pytest.approx(np.mean(before != after))
        assert row.entropy_bytes == pytest.approx(entropy_bits(before, after) / 8)
    plain = [row.patch_bytes for row in measured.history if row.context == NONE]
    sizes = [len(encode_ec2(*pair, BF16, NUMPY_KERNELS)) + HEADER_BYTES for pair in itertools.pairwise(versions)]
    assert plain == sizes
    assert over_entropy(measured.history, NONE) == pytest.approx(
        sum(sizes) / sum(entropy_bits(*pair) / 8 for pair in itertools.pairwise(versions))
    )
    assert (out / "history-table.md").read_text().count("\n") == 2 + TRAINED_UPDATES + 2
    assert min(vars(measured.limits).values()) > 0


def test_the_versions_of_a_run_are_measured(tmp_path: Path) -> None:
    world = SmallRun(tmp_path)
    (tmp_path / "run.manifest").write_bytes(world.manifest_raw)
    policies = [world.publish(version, step=version) for version in (0, 1, 3)]
    own, rounded = run_updates(tmp_path)
    assert (own.word_type, rounded.word_type, len(own.pairs), len(rounded.pairs)) == (FP32, BF16, 1, 1)
    for words, policy in zip(own.pairs[0], policies, strict=False):
        assert words.tobytes() == world.published.weights(policy.manifest.version).open()
    encode, _ = codecs(FP32)["patch (numpy)"]
    assert sent_bytes(encode(*own.pairs[0])) < own.pairs[0][1].nbytes
    world.close()


def test_a_folder_without_a_run_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run folder"):
        run_updates(tmp_path)
    answer = CliRunner().invoke(app, ["bench", "patch", "--words", "5", "--json"])
    assert isinstance(answer.exception, ConfigError)
    assert "words is 5" in str(answer.exception)


@pytest.mark.parametrize("word_type", [BF16, FP32], ids=["bf16", "fp32"])
def test_bands_match_a_learner_with_each_band(word_type: WordType) -> None:
    """Compare with a walk of plain integers: words above zero, whose order is that of their bits. Half is measured."""
    finer = 1 if word_type is BF16 else 1 << 16
    rng = np.random.default_rng(6)
    walk = rng.integers(0x3C00, 0x3D00, 3000) + np.cumsum(rng.integers(-2, 3, (9, 3000)), axis=0)
    versions = tuple((row * finer).astype(word_type.dtype) for row in walk)
    bands = (0, 1, 3)
    rows = measure_bands(Chain(name="walk", word_type=word_type, versions=iter(versions), count=8), bands)
    assert [row.band_ulp for row in rows] == [band * finer for band in bands]
    encode, _ = codecs(word_type)["patch (numpy)"]
    for band, row in zip(bands, rows, strict=True):
        published = [walk[0]]
        for fresh in walk[1:]:
            published.append(np.where(abs(fresh - published[-1]) > band, fresh, published[-1]))
        words = [(row * finer).astype(word_type.dtype) for row in published]
        sizes = [sent_bytes(encode(old, new)) for old, new in itertools.pairwise(words[4:])]
        assert (row.versions, row.measured) == (8, 4)
        assert row.changed_share == pytest.approx(np.mean(np.diff(published[4:], axis=0) != 0))
        assert row.held_share == pytest.approx(np.mean(published[-1] != walk[-1]))
        assert row.patch_bytes == pytest.approx(np.mean(sizes))
        assert row.of_all == pytest.approx(np.mean(sizes) / rows[0].patch_bytes)
        assert row.merged_bytes == sent_bytes(encode(words[4], words[8]))
    assert rows[0].held_share == 0.0
    assert rows[0].changed_share > rows[1].changed_share > rows[2].changed_share > 0
    assert len(bands_as_markdown(rows).splitlines()) == 2 + len(rows)


def test_a_run_is_measured_over_its_longest_sequence(tmp_path: Path) -> None:
    world = SmallRun(tmp_path)
    (tmp_path / "run.manifest").write_bytes(world.manifest_raw)
    policies = [world.publish(version, step=version) for version in (0, 1, 3, 4, 5)]
    own, rounded = run_chains(tmp_path)
    published = [world.published.weights(policy.manifest.version).open() for policy in policies[2:]]
    assert [words.tobytes() for words in own.versions] == published
    assert (own.word_type, rounded.word_type, len(list(rounded.versions))) == (FP32, BF16, 3)
    world.close()


@pytest.mark.parametrize(("bands", "named"), [("129", "bands is 129"), ("-1", "bands is -1"), ("1;2", "--bands '1;2'")])
def test_invalid_bands_are_refused(bands: str, named: str) -> None:
    answer = CliRunner().invoke(app, ["bench", "patch", "--bands", bands, "--json"])
    assert isinstance(answer.exception, ConfigError)
    assert named in str(answer.exception)
