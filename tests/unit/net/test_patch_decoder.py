"""Patch decoding: writes the signed weights, or no file."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
from blake3 import blake3
from numpy.typing import NDArray

from p2prl.errors import IntegrityError, MachineError, RemoteProtocolError
from p2prl.net.process import control
from p2prl.net.process.patch_decoder import PatchDecoder, rebuild
from p2prl.patches.encode import encode_patch
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.stream_format import SEGMENT_WORDS, segment_spans
from p2prl.patches.words import BF16

WORDS = 3000


@dataclass
class Disk:
    """Versions 0..3 of a small model, each a file, and the patches between them."""

    folder: Path
    versions: list[NDArray[np.uint16]]

    def words_at(self, version: int) -> Path:
        path = self.folder / f"words-{version}"
        path.write_bytes(self.versions[version].tobytes())
        return path

    def patch(self, base: int, version: int) -> Path:
        new = self.versions[version]
        old = np.zeros_like(new) if base < 0 else self.versions[base]
        pairs = [(old[s : s + n], new[s : s + n]) for s, n in segment_spans(len(new))]
        path = self.folder / f"patch-{base}-{version}"
        path.write_bytes(b"".join(encode_patch(pairs, words=len(new), word_type=BF16, kernels=NUMPY_KERNELS)))
        return path

    def order(self, *route: int) -> control.PatchesReady:
        """An order for a route from its first version over the others; −1 is a keyframe's empty base."""
        new = self.versions[route[-1]].tobytes()
        return control.PatchesReady(
            digest=bytes(32),
            weights_digest=blake3(new).digest(),
            size_bytes=len(new),
            dtype="bfloat16",
            base="" if route[0] < 0 else str(self.words_at(route[0])),
            patches=tuple(str(self.patch(a, b)) for a, b in itertools.pairwise(route)),
            target=str(self.folder / "target"),
        )

    @property
    def target(self) -> Path:
        return self.folder / "target"


def versions_of(words: int) -> list[NDArray[np.uint16]]:
    rng = np.random.default_rng(3)
    made = [rng.integers(0, 1 << 16, words, dtype=np.uint16)]
    for _ in range(3):
        new = made[-1].copy()
        places = rng.integers(0, words, max(1, words // 50))
        new[places] += rng.integers(1, 4, len(places), dtype=np.uint16)
        made.append(new)
    return made


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path, versions_of(WORDS))


@pytest.mark.parametrize("route", [(0,), (0, 1), (0, 1, 2, 3), (0, 3), (-1, 2), (-1, 0, 3)])
def test_every_route_ends_in_the_weights_of_its_version(disk: Disk, route: tuple[int, ...]) -> None:
    rebuild(disk.order(*route))
    assert disk.target.read_bytes() == disk.versions[route[-1]].tobytes()
    assert {path.name for path in disk.folder.iterdir() if path.suffix} == set(), "nothing half written is left"


def test_segments_go_through_all_patches_in_step(tmp_path: Path) -> None:
    disk = Disk(tmp_path, versions_of(SEGMENT_WORDS + 17))
    rebuild(disk.order(0, 1, 2))
    assert disk.target.read_bytes() == disk.versions[2].tobytes()


def truncated(disk: Disk, order: control.PatchesReady) -> control.PatchesReady:
    Path(order.patches[-1]).write_bytes(Path(order.patches[-1]).read_bytes()[:-1])
    return order


def longer(disk: Disk, order: control.PatchesReady) -> control.PatchesReady:
    Path(order.patches[0]).write_bytes(Path(order.patches[0]).read_bytes() + b"\0")
    return order


def other_base(disk: Disk, order: control.PatchesReady) -> control.PatchesReady:
    return msgspec.structs.replace(order, base=str(disk.words_at(3)))


def short_base(disk: Disk, order: control.PatchesReady) -> control.PatchesReady:
    Path(order.base).write_bytes(Path(order.base).read_bytes()[:-2])
    return order


def other_state(disk: Disk, order: control.PatchesReady) -> control.PatchesReady:
    return msgspec.structs.replace(order, weights_digest=bytes(32))


def missing_patch(disk: Disk, order: control.PatchesReady) -> control.PatchesReady:
    Path(order.patches[0]).unlink()
    return order


@pytest.mark.parametrize("spoil", [truncated, longer, other_base, short_base, other_state, missing_patch])
def test_patches_to_other_weights_leave_no_file(
    disk: Disk, spoil: Callable[[Disk, control.PatchesReady], control.PatchesReady]
) -> None:
    order = spoil(disk, disk.order(0, 1, 2))
    with pytest.raises((IntegrityError, RemoteProtocolError, MachineError)):
        rebuild(order)
    assert not disk.target.exists()
    assert not disk.target.with_suffix(".rebuilt").exists()


def test_no_flipped_bit_gives_other_weights(disk: Disk) -> None:
    order = disk.order(0, 1, 2)
    dice = random.Random(5)
    for patch in order.patches:
        sound = Path(patch).read_bytes()
        for _ in range(150):
            damaged = bytearray(sound)
            damaged[dice.randrange(len(sound))] ^= 1 << dice.randrange(8)
            Path(patch).write_bytes(damaged)
            try:
                rebuild(order)
            except (IntegrityError, RemoteProtocolError):
                assert not disk.target.exists()
            else:
                assert disk.target.read_bytes() == disk.versions[2].tobytes()
                disk.target.unlink()
        Path(patch).write_bytes(sound)


def test_every_order_is_answered_in_turn_with_its_error(disk: Disk) -> None:
    answers: list[tuple[control.VersionRebuilt, str]] = []
    rebuilder = PatchDecoder(lambda answer, fault: answers.append((answer, fault)))
    good = msgspec.structs.replace(disk.order(0, 1), digest=b"good" * 8)
    bad = msgspec.structs.replace(disk.order(0, 2), digest=b"fail" * 8, weights_digest=bytes(32))
    for order in (bad, good):
        rebuilder.take(order)
    rebuilder.close(timeout_s=60.0)
    assert [answer for answer, _ in answers] == [
        control.VersionRebuilt(bad.digest, False),
        control.VersionRebuilt(good.digest, True),
    ]
    assert [bool(fault) for _, fault in answers] == [True, False]
    assert disk.target.read_bytes() == disk.versions[1].tobytes()
