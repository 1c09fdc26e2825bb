"""Rebuilding versions from patches: the signed weights or nothing, and on disk once."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from p2prl.errors import IntegrityError, MachineError, RemoteProtocolError
from p2prl.net.process import control
from p2prl.net.process.patch_decoder import PatchDecoder, forget
from p2prl.net.process.version_rebuild import rebuild, resume_chain
from p2prl.net.storage.chain_blobs import CHAIN_FOLDER, WorkerBlobs
from p2prl.net.storage.held_weights import has_weights, open_weights
from p2prl.net.storage.weight_store import WeightStore
from p2prl.patches.stream_format import SEGMENT_WORDS
from p2prl.patches.words import BF16
from p2prl.protocol.manifests import blob_of
from p2prl.swarm import signals
from tests.unit.net.store_rig import KilledError, KilledFiles
from tests.unit.net.worker_disk import WORDS, Disk, versions_of
from tests.unit.rebuilding import CHUNK_BYTES, order_for, stored


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path, versions_of(WORDS))


@pytest.mark.parametrize("route", [(0,), (0, 1), (0, 1, 2, 3), (0, 3), (-1, 2), (-1, 0, 3)])
def test_every_route_ends_in_the_weights_of_its_version(disk: Disk, route: tuple[int, ...]) -> None:
    rebuild(disk.order(*route))
    assert disk.held(route[-1]) == disk.weights(route[-1])
    assert {path.suffix for path in disk.folder.rglob("*")} <= {"", ".tree", ".json"}, "nothing half written is left"


def test_segments_go_through_all_patches_in_step(tmp_path: Path) -> None:
    disk = Disk(tmp_path, versions_of(SEGMENT_WORDS + 17))
    rebuild(disk.order(0, 1, 2))
    assert disk.held(2) == disk.weights(2)


def patch_path(order: control.PatchesReady, index: int) -> Path:
    return Path(order.folder) / order.patches[index].hex()


def truncated(disk: Disk, order: control.PatchesReady) -> control.PatchesReady:
    path = patch_path(order, -1)
    path.write_bytes(path.read_bytes()[:-1])
    return order


def longer(disk: Disk, order: control.PatchesReady) -> control.PatchesReady:
    path = patch_path(order, 0)
    path.write_bytes(path.read_bytes() + b"\0")
    return order


def other_base(disk: Disk, order: control.PatchesReady) -> control.PatchesReady:
    return msgspec.structs.replace(order, base=stored(disk.folder, disk.weights(3)).root)


def short_base(disk: Disk, order: control.PatchesReady) -> control.PatchesReady:
    path = Path(order.folder) / order.base.hex()
    path.write_bytes(path.read_bytes()[:-2])
    return order


def other_state(disk: Disk, order: control.PatchesReady) -> control.PatchesReady:
    return msgspec.structs.replace(order, weights_digest=bytes(32))


def other_tree(disk: Disk, order: control.PatchesReady) -> control.PatchesReady:
    return msgspec.structs.replace(order, weights=msgspec.structs.replace(order.weights, tree=bytes(32)))


def missing_patch(disk: Disk, order: control.PatchesReady) -> control.PatchesReady:
    patch_path(order, 0).unlink()
    return order


SPOILED = [truncated, longer, other_base, short_base, other_state, other_tree, missing_patch]


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("spoil", SPOILED)
def test_patches_to_other_weights_leave_nothing(
    disk: Disk, spoil: Callable[[Disk, control.PatchesReady], control.PatchesReady], chained: bool
) -> None:
    if chained:  # a version before is in a chain already, and that of the order is a file
        rebuild(disk.order(-1, 0))
        order = disk.order_from(stored(disk.folder, disk.weights(1)), 1, 2)
        order = msgspec.structs.replace(order, held=disk.roots(0, 1))
    else:
        order = disk.order(0, 1, 2)
    order = spoil(disk, order)
    with pytest.raises((IntegrityError, RemoteProtocolError, MachineError)):
        rebuild(order)
    assert not has_weights(Path(order.folder) / order.weights.root.hex())
    assert not has_weights(disk.path(2))
    assert {path.suffix for path in disk.folder.rglob("*")} <= {"", ".tree", ".json"}
    if chained:
        assert disk.held(0) == disk.weights(0)


def test_no_flipped_bit_gives_other_weights(disk: Disk) -> None:
    order = disk.order(-1, 0, 2)
    dice = random.Random(5)
    for number in range(2):
        path = patch_path(order, number)
        sound = path.read_bytes()
        for _ in range(150):
            damaged = bytearray(sound)
            damaged[dice.randrange(len(sound))] ^= 1 << dice.randrange(8)
            path.write_bytes(damaged)
            try:
                rebuild(order)
            except (IntegrityError, RemoteProtocolError):
                assert not has_weights(disk.path(2))
            else:
                assert disk.held(2) == disk.weights(2)
                WeightStore(disk.folder / CHAIN_FOLDER).remove()
        path.write_bytes(sound)


def chain_of(disk: Disk) -> WeightStore:
    return WeightStore(disk.folder / CHAIN_FOLDER)


def blob_files(disk: Disk) -> set[str]:
    """Weights of versions that are files of their own."""
    return {path.name for path in disk.folder.iterdir() if path.is_file()} & {disk.path(v).name for v in range(4)}


def follow(disk: Disk, *versions: int, held: tuple[int, ...] = (0, 1, 2, 3)) -> None:
    """Rebuild each version from the one before, of a node that holds these."""
    for old, new in itertools.pairwise(versions):
        base = blob_of(disk.weights(old), CHUNK_BYTES)
        rebuild(msgspec.structs.replace(disk.order_from(base, old, new), held=disk.roots(*held)))


def test_versions_are_on_disk_once_and_each_can_be_read(disk: Disk) -> None:
    stored(disk.folder, disk.weights(0))
    follow(disk, 0, 1, 2, 3)
    assert blob_files(disk) == set(), "the file of version 0 became the chain's"
    assert [disk.held(version) for version in range(4)] == [disk.weights(version) for version in range(4)]
    size = len(disk.weights(0))
    inverses = [path.stat().st_size for path in (disk.folder / CHAIN_FOLDER).glob("back-*")]
    assert len(inverses) == 3
    assert chain_of(disk).disk_bytes < size + sum(inverses) + 1000


def test_versions_that_the_node_dropped_are_forgotten(disk: Disk) -> None:
    stored(disk.folder, disk.weights(0))
    follow(disk, 0, 1, 2)
    follow(disk, 2, 3, held=(2,))
    state = chain_of(disk).state
    assert state is not None
    assert sorted(state.roots) == [2, 3]
    with pytest.raises(FileNotFoundError):
        disk.held(1)


def test_a_sampler_maps_the_newest_version_and_no_other(disk: Disk) -> None:
    stored(disk.folder, disk.weights(0))
    follow(disk, 0, 1)
    assert bytes(open_weights(disk.path(1))) == disk.weights(1)
    with pytest.raises(FileNotFoundError):
        open_weights(disk.path(0))


def test_a_chain_nobody_holds_makes_room_for_another(disk: Disk) -> None:
    rebuild(disk.order(-1, 0))
    rebuild(disk.order(-1, 2))
    state = chain_of(disk).state
    assert state is not None
    assert sorted(state.roots) == [2]
    assert disk.held(2) == disk.weights(2)


def test_a_version_downloaded_whole_joins_the_chain(disk: Disk) -> None:
    """A jump: version 2 arrived as a file while the chain held version 0."""
    rebuild(disk.order(-1, 0))
    stored(disk.folder, disk.weights(2))
    follow(disk, 2, 3)
    assert blob_files(disk) == set()
    assert [disk.held(version) for version in (0, 2, 3)] == [disk.weights(version) for version in (0, 2, 3)]


def test_an_older_version_gets_a_file(disk: Disk) -> None:
    """A validator asks for a version that its chain has gone past."""
    stored(disk.folder, disk.weights(0))
    follow(disk, 0, 3)
    follow(disk, 0, 1)
    assert blob_files(disk) == {disk.path(1).name}
    assert [disk.held(version) for version in (0, 1, 3)] == [disk.weights(version) for version in (0, 1, 3)]


def test_weights_do_not_change_under_their_reader(disk: Disk) -> None:
    """A sampler reads version 1 until it has a pause; version 2 comes meanwhile, in a file of its own."""
    stored(disk.folder, disk.weights(0))
    follow(disk, 0, 1)
    view = open_weights(disk.path(1))
    follow(disk, 1, 2)
    assert bytes(view) == disk.weights(1)
    assert blob_files(disk) == {disk.path(2).name}
    assert disk.held(2) == disk.weights(2)
    view.release()
    del view
    follow(disk, 2, 3)
    assert blob_files(disk) == set()
    assert [disk.held(version) for version in range(4)] == [disk.weights(version) for version in range(4)]


def test_a_file_that_becomes_the_chains_does_not_change_under_its_reader(disk: Disk) -> None:
    stored(disk.folder, disk.weights(0))
    view = open_weights(disk.path(0))
    follow(disk, 0, 1)
    assert bytes(view) == disk.weights(0)
    assert disk.held(1) == disk.weights(1)


def test_a_version_with_the_weights_of_another_is_the_same_blob(disk: Disk) -> None:
    """Nothing was learned between versions 1 and 2: the node needs no order to hold version 2."""
    disk.versions[2] = disk.versions[1]
    stored(disk.folder, disk.weights(0))
    follow(disk, 0, 1)
    assert disk.held(2) == disk.weights(1)
    follow(disk, 2, 3, held=(2,))
    assert [disk.held(version) for version in (1, 2, 3)] == [disk.weights(version) for version in (1, 2, 3)]
    assert blob_files(disk) == set()


def test_where_everything_changes_a_version_gets_a_file(disk: Disk) -> None:
    """Staged beside the chain it would take the room of the weights twice."""
    rng = np.random.default_rng(1)
    disk.versions[1] = rng.integers(0, 1 << 16, WORDS, dtype=np.uint16)
    stored(disk.folder, disk.weights(0))
    follow(disk, 0, 1)
    assert blob_files(disk) == {disk.path(1).name}
    assert [disk.held(version) for version in (0, 1)] == [disk.weights(version) for version in (0, 1)]
    assert not list((disk.folder / CHAIN_FOLDER).glob("*.new"))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("chained", [False, True])
def test_a_killed_rebuild_loses_nothing(tmp_path: Path, chained: bool, half: bool) -> None:
    """At any write: the version before or the next is there, and the next start goes on from it."""
    versions = versions_of(WORDS)
    for at in itertools.count():
        disk, files = Disk(tmp_path / str(at), versions), KilledFiles(at, half=half)
        stored(disk.folder, disk.weights(0))
        if chained:
            follow(disk, 0, 1)
        before = 1 if chained else 0
        base = blob_of(disk.weights(before), CHUNK_BYTES)
        order = msgspec.structs.replace(disk.order_from(base, before, before + 1), held=disk.roots(0, before))
        with contextlib.suppress(KilledError):
            rebuild(order, files)
        files.bury()
        resume_chain(disk.folder)
        for version in range(before + 2):
            if version <= before or has_weights(disk.path(version)):
                assert disk.held(version) == disk.weights(version), f"version {version} after write {at}"
        if not has_weights(disk.path(before + 1)):
            rebuild(order)
        follow(disk, before + 1, before + 2)
        assert [disk.held(version) for version in (before, before + 1, before + 2)] == [
            disk.weights(version) for version in (before, before + 1, before + 2)
        ]
        assert {path.suffix for path in disk.folder.rglob("*") if path.is_file()} <= {"", ".tree", ".json"}
        if not files.dead:
            break
    assert at > 15, "otherwise no write was stopped"


def test_peers_are_served_from_the_chain_and_across_the_move(disk: Disk) -> None:
    ref = stored(disk.folder, disk.weights(0))
    store = WorkerBlobs(disk.folder)
    assert set(store.begin(ref)) == set(range(ref.total)), "a file at first"
    follow(disk, 0, 1, 2)
    for version in range(3):
        data = disk.weights(version)
        held = blob_of(data, CHUNK_BYTES)
        if version:
            assert set(store.begin(held)) == set(range(held.total))
        assert b"".join(store.read(held, index) for index in range(held.total)) == data
        for index in range(held.total):
            start, length = held.span(index)
            assert held.proves(index, data[start : start + length], store.proof(held, index))
    store.drop(ref.root)
    assert disk.held(0) == disk.weights(0), "only the role forgets versions"
    store.close()


def test_the_room_of_a_version_is_what_it_takes_on_disk(disk: Disk) -> None:
    stored(disk.folder, disk.weights(0))
    follow(disk, 0, 1, 2)
    store, size = WorkerBlobs(disk.folder), len(disk.weights(0))
    refs = [blob_of(disk.weights(version), CHUNK_BYTES) for version in range(3)]
    inverses = sum(path.stat().st_size for path in (disk.folder / CHAIN_FOLDER).glob("back-*"))
    assert sum(map(store.room, refs)) == size + inverses, "before a node has begun with them"
    for ref in refs:
        store.begin(ref)
    assert sum(map(store.room, refs)) == size + inverses
    store.drop(refs[2].root)
    assert store.room(refs[1]) == size, "the file stays as long as a version needs it"
    store.close()


def test_weights_that_come_again_and_again_fill_no_disk(disk: Disk) -> None:
    stored(disk.folder, disk.weights(0))
    first, second = disk.roots(0, 1)
    for version in range(1, 12):
        (old, new), (root, _) = ((0, 1), (first, second)) if version % 2 else ((1, 0), (second, first))
        order = order_for(
            disk.folder,
            disk.weights(new),
            version=version,
            base=blob_of(disk.weights(old), CHUNK_BYTES),
            base_version=version - 1,
            patches=[disk.patch(old, new)],
        )
        rebuild(msgspec.structs.replace(order, held=(root,)))
    state = chain_of(disk).state
    assert state is not None
    assert sorted(state.roots) == [10, 11]


def test_released_versions_are_forgotten_at_once(disk: Disk) -> None:
    stored(disk.folder, disk.weights(0))
    follow(disk, 0, 1, 2)
    forget(control.WeightsReleased(disk.roots(1, 2), str(disk.folder)))
    assert [has_weights(disk.path(version)) for version in range(3)] == [False, True, True]
    forget(control.WeightsReleased((), str(disk.folder)))
    assert chain_of(disk).disk_bytes == 0


def test_a_name_left_by_a_killed_role_goes_at_the_next_start(disk: Disk) -> None:
    ref = stored(disk.folder, disk.weights(0))
    aside = disk.folder / "aside"
    aside.hardlink_to(disk.path(0))
    chain_of(disk).adopt(0, ref.root, disk.path(0), BF16)
    aside.rename(disk.path(0))
    resume_chain(disk.folder)
    assert blob_files(disk) == set()
    assert disk.held(0) == disk.weights(0)


def test_a_damaged_chain_goes_at_the_next_start(disk: Disk) -> None:
    stored(disk.folder, disk.weights(0))
    follow(disk, 0, 1)
    weights = disk.folder / CHAIN_FOLDER / "weights"
    weights.write_bytes(bytes(len(disk.weights(1))))
    resume_chain(disk.folder)
    assert not has_weights(disk.path(1))
    assert chain_of(disk).state is None


def test_every_order_is_answered_in_turn_with_its_error(disk: Disk) -> None:
    answers: list[tuple[signals.VersionRebuilt, str]] = []
    rebuilder = PatchDecoder(lambda answer, fault: answers.append((answer, fault)))
    good = msgspec.structs.replace(disk.order(0, 1), digest=b"good" * 8)
    bad = msgspec.structs.replace(disk.order(0, 2), digest=b"fail" * 8, weights_digest=bytes(32))
    for order in (bad, good):
        rebuilder.take(order)
    rebuilder.close(timeout_s=60.0)
    assert [answer for answer, _ in answers] == [
        signals.VersionRebuilt(bad.digest, False),
        signals.VersionRebuilt(good.digest, True),
    ]
    assert [bool(fault) for _, fault in answers] == [True, False]
    assert disk.held(1) == disk.weights(1)
