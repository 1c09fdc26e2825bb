"""Requirements of a run by its manifest."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from p2prl.config.requirements import PROGRAM_BYTES, SEEDER_BYTES, Requirements, requirements_of
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import DataSet, RunFile, TaskShare, blob_of
from p2prl.quantity_text import size_text
from p2prl_lab.testing.sample_ledgers import manifest

NEEDS = Requirements(files_bytes=1_000, data_bytes=0, weights_bytes=100_000, disk_bytes=0, memory_bytes=0)


def test_requirements_follow_from_the_manifest() -> None:
    files = tuple(RunFile(name, blob_of(bytes(5_000), 4096)) for name in ("config.json", "tokenizer.json"))
    run = msgspec.structs.replace(manifest(), parameters=1_000_000, dtype="bfloat16", files=files)
    volunteer, validator = requirements_of(run, Role.VOLUNTEER), requirements_of(run, Role.VALIDATOR)
    assert volunteer.download_bytes == 2_010_000
    assert volunteer.disk_bytes == 10_000 + 4 * 2_000_000
    assert validator.disk_bytes > volunteer.disk_bytes
    wide = requirements_of(msgspec.structs.replace(run, dtype="float32"), Role.VOLUNTEER)
    assert wide.weights_bytes == 2 * volunteer.weights_bytes
    assert wide.memory_bytes - volunteer.memory_bytes == 2 * 2_000_000
    computed_wide = requirements_of(msgspec.structs.replace(run, compute_dtype="float32"), Role.VOLUNTEER)
    assert computed_wide.weights_bytes == volunteer.weights_bytes
    assert computed_wide.memory_bytes - volunteer.memory_bytes == 2_000_000


@pytest.mark.parametrize(("role", "whole", "patches"), [(Role.VOLUNTEER, 4, 7), (Role.VALIDATOR, 64, 127)])
def test_versions_of_a_large_model_are_kept_as_patches(role: Role, whole: int, patches: int) -> None:
    """Patches where 2.6 % of the words change are 99 times smaller than the weights, where 7 % do, 42 times."""

    def versions(weights: int) -> int:
        return requirements_of(msgspec.structs.replace(run, parameters=weights // 2), role).disk_bytes

    run = msgspec.structs.replace(manifest(), dtype="bfloat16", files=())
    assert versions(15_200_000_000) == 2 * 15_200_000_000 + patches * 380_000_000
    assert versions(10_000_000) == min(whole * 10_000_000, 1_000_000_000)
    sizes = [versions(size) for size in range(2_000_000, 2_000_000_000, 14_000_000)]
    assert sizes == sorted(sizes)


def test_data_counts_as_download_and_on_disk_by_role() -> None:
    prompts, answers, code = (blob_of(bytes(size), 4096) for size in (30_000, 50_000, 700))
    data = DataSet("rows", 3, prompts, answers, "{}", code)
    tasks = (*manifest().tasks, TaskShare("rows", 1.0))
    run = msgspec.structs.replace(manifest(), files=(), parameters=1_000, tasks=tasks, data_sets=(data,))
    volunteer, weights = requirements_of(run, Role.VOLUNTEER), requirements_of(run, Role.VOLUNTEER).weights_bytes
    assert volunteer.data_bytes == 30_000
    assert volunteer.download_bytes == 30_000 + weights
    assert volunteer.disk_bytes == 30_000 + 4 * weights
    assert requirements_of(run, Role.VALIDATOR).data_bytes == 30_000
    assert requirements_of(run, Role.VALIDATOR, runs_code=True).data_bytes == 80_700


def test_a_seeder_needs_no_engine() -> None:
    run = msgspec.structs.replace(manifest(), parameters=1_000_000)
    seeder, volunteer = requirements_of(run, Role.SEEDER), requirements_of(run, Role.VOLUNTEER)
    assert seeder.private_bytes(on_cpu=True) == SEEDER_BYTES
    assert volunteer.private_bytes(on_cpu=False) == PROGRAM_BYTES
    assert volunteer.private_bytes(on_cpu=True) == PROGRAM_BYTES + volunteer.engine_bytes
    assert volunteer.engine_bytes == 4_000_000


def test_two_versions_are_the_least_and_a_base_is_a_third() -> None:
    needs = replace(NEEDS, data_bytes=500)
    assert needs.least_disk_bytes() == 1_500 + 200_000
    assert needs.least_disk_bytes(has_base=True) == 1_500 + 300_000


def test_the_most_written_is_twice_each_version_and_room_for_two_failures() -> None:
    assert NEEDS.most_written(1) == 1_000 + 6 * 100_000
    assert NEEDS.most_written(3) == 1_000 + 10 * 100_000


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (99_940, "99.9 kB"), (123_456, "123 kB"),
        (999_499, "999 kB"), (999_500, "1.0 MB"), (2_500_000_000, "2.5 GB"), (1_234_000_000_000, "1,234.0 GB"),
    ],
)  # fmt: skip
def test_sizes_read_well(size: int, text: str) -> None:
    assert size_text(size) == text
