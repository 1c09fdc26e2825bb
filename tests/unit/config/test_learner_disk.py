"""Disk of a learner: told in one sentence, and refused where there is less."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from p2prl.config.learner_disk import check_disk, disk_text, needed_bytes
from p2prl.errors import MachineError
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of

MANIFEST = run_manifest_of(identity_of("learner"), weight_bytes=1_000_000)


def test_need_grows_with_weights_and_window() -> None:
    least, most = needed_bytes(MANIFEST)
    assert least == 3_000_000
    assert most == 3_000_000 + 2 * (8 + 2 + 2) * 1_000_000
    small = msgspec.structs.replace(MANIFEST, dtype="bfloat16")
    assert needed_bytes(small) == (1_500_000, 2_100_000)
    assert needed_bytes(msgspec.structs.replace(small, staleness_bound=18)) == (1_500_000, 2_600_000)
    assert needed_bytes(small, replayers=3) == (2_000_000, 2_600_000), "they share one copy"
    assert "1,000,000 bytes a version, up to 10 versions back" in disk_text(MANIFEST)


def test_a_disk_with_less_is_refused(tmp_path: Path) -> None:
    check_disk(MANIFEST, tmp_path / "run" / "blobs")
    huge = msgspec.structs.replace(MANIFEST, parameters=1 << 60)
    with pytest.raises(MachineError, match="published weights need") as caught:
        check_disk(huge, tmp_path / "run" / "blobs")
    assert "larger disk" in caught.value.remedy
