"""Hash trees on disk: whole ones prove every chunk, single proofs are kept in their place, and nothing else counts."""

from __future__ import annotations

from pathlib import Path

from p2prl.net.storage.tree_files import NEW_TREE_SUFFIX, TREE_SUFFIX, TreeFiles
from p2prl.protocol.hash_tree import proof_among
from p2prl.protocol.manifests import blob_of, tree_of

DATA = bytes(range(256)) * 180  # twelve chunks of 4 KiB, the last one short
REF, NODES = tree_of(DATA, 4096)


def test_a_whole_tree_proves_every_chunk(tmp_path: Path) -> None:
    trees = TreeFiles(tmp_path)
    assert not trees.is_whole(REF)
    assert trees.nodes(REF.root) == b""
    assert trees.proof(REF, 0) == b""
    trees.save(REF.root, NODES)
    assert trees.is_whole(REF)
    assert not trees.is_whole(blob_of(DATA[:-1], 4096))
    for index in range(REF.total):
        begin, size = REF.span(index)
        assert trees.proof(REF, index) == proof_among(NODES, index, REF.total)
        assert REF.proves(index, DATA[begin : begin + size], trees.proof(REF, index))
    assert [path.name for path in tmp_path.iterdir()] == [REF.root.hex() + TREE_SUFFIX]
    assert NEW_TREE_SUFFIX not in str(list(tmp_path.iterdir()))
    trees.drop(REF.root)
    trees.drop(REF.root)
    assert list(tmp_path.iterdir()) == []


def test_proofs_make_a_tree_one_by_one(tmp_path: Path) -> None:
    trees = TreeFiles(tmp_path)
    for index in range(REF.total):
        assert not trees.is_whole(REF)
        proof = proof_among(NODES, index, REF.total)
        trees.note(REF, index, proof)
        assert trees.proof(REF, index) == proof
    path = tmp_path / (REF.root.hex() + TREE_SUFFIX)
    assert path.stat().st_mode & 0o7777 == 0o600, "for this user alone"
    known = path.read_bytes()
    same = sum(known[at : at + 32] == NODES[at : at + 32] for at in range(0, len(NODES), 32))
    assert (same, len(NODES) // 32) == (22, 24), "of 12 + 6 + 3 + 2 + 1 all but the last of three and the top"


def test_a_damaged_tree_is_not_whole(tmp_path: Path) -> None:
    trees = TreeFiles(tmp_path)
    for damaged in (NODES[:-32], NODES + bytes(32), NODES[:-1] + bytes([NODES[-1] ^ 1])):
        trees.save(REF.root, damaged)
        assert not trees.is_whole(REF)
