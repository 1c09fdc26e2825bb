"""Hash trees: every chunk of a blob can be proved, and nothing else."""

from __future__ import annotations

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.protocol import limits
from p2prl.protocol.hash_tree import (
    TreeBuilder,
    bound_top,
    leaf_of,
    level_sizes,
    node_of,
    proof_among,
    top_by_proof,
    top_of,
)
from p2prl.protocol.manifests import BlobRef, tree_of

CHUNK = limits.MIN_CHUNK_BYTES


def hashed(domain: str, *parts: bytes) -> bytes:
    """The specification's `digest`, written once more."""
    framed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return blake3(framed, derive_key_context=domain).digest()


def naive_top(names: list[bytes]) -> bytes:
    """RFC 6962, section 2.1: split at the largest power of two below the number of leaves."""
    if len(names) == 1:
        return hashed("p2prl/blob-leaf/v1", names[0])
    half = 1 << (len(names) - 1).bit_length() - 1
    return hashed("p2prl/blob-node/v1", naive_top(names[:half]) + naive_top(names[half:]))


def names_of(count: int) -> list[bytes]:
    return [blake3(number.to_bytes(4, "big")).digest() for number in range(count)]


def piece(data: bytes, index: int) -> bytes:
    return data[index * CHUNK : (index + 1) * CHUNK]


@pytest.mark.parametrize("count", [*range(1, 35), 63, 64, 65, 100, 257])
def test_the_top_is_that_of_the_definition_and_every_leaf_leads_to_it(count: int) -> None:
    names = names_of(count)
    nodes = TreeBuilder(names).nodes
    top = naive_top(names)
    assert top_of(nodes) == top
    assert len(nodes) == 32 * sum(level_sizes(count))
    for index, name in enumerate(names):
        proof = proof_among(nodes, index, count)
        assert len(proof) <= 32 * (count - 1).bit_length()
        assert top_by_proof(leaf_of(name), index, count, proof) == top


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 100])
def test_a_tree_has_no_leaf_before_its_first_or_after_its_last(count: int) -> None:
    """A place beyond the count is that of another leaf after a few halvings, and shares its proof."""
    names = names_of(count)
    nodes = TreeBuilder(names).nodes
    for place in (*range(-2 * count - 1, 0), *range(count, 4 * count + 1)):
        for index, name in enumerate(names):
            assert top_by_proof(leaf_of(name), place, count, proof_among(nodes, index, count)) is None


def test_the_largest_blobs_proofs_fit_their_limit() -> None:
    assert 32 * (len(level_sizes(limits.MAX_CHUNKS)) - 1) == limits.MAX_PROOF_BYTES


@given(st.integers(1, 70), st.data())
@settings(max_examples=200)
def test_no_other_place_count_or_proof_leads_to_the_hash(count: int, data: st.DataObject) -> None:
    names = names_of(count)
    nodes = TreeBuilder(names).nodes
    size = count * CHUNK
    ref = BlobRef(size, CHUNK, bound_top(size, CHUNK, top_of(nodes)))
    index = data.draw(st.integers(0, count - 1))
    proof = proof_among(nodes, index, count)
    assert ref.proves_name(index, names[index], proof)
    other = data.draw(st.integers(0, count - 1).filter(lambda at: at != index) if count > 1 else st.just(None))
    if other is not None:
        assert not ref.proves_name(other, names[index], proof), "another index"
        assert not ref.proves_name(index, names[other], proof), "another chunk"
        cut = data.draw(st.integers(0, len(proof) - 1))
        assert not ref.proves_name(index, names[index], proof[:cut]), "truncated"
        spoiled = bytearray(proof)
        spoiled[cut] ^= 1 << data.draw(st.integers(0, 7))
        assert not ref.proves_name(index, names[index], bytes(spoiled)), "one bit"
    assert not ref.proves_name(index, names[index], proof + bytes(32)), "too long"
    if len(proof) >= 64:
        swapped = proof[32:64] + proof[:32] + proof[64:]
        assert not ref.proves_name(index, names[index], swapped), "siblings swapped"
    lie = data.draw(st.integers(1, 140).filter(lambda number: number != count))
    lied = BlobRef(lie * CHUNK, CHUNK, ref.tree)
    assert index >= lie or not lied.proves_name(index, names[index], proof), "another count"
    for lied in (BlobRef(size - 1, CHUNK, ref.tree), BlobRef(size, CHUNK + 1, ref.tree)):
        assert index >= lied.total or not lied.proves_name(index, names[index], proof), "other sizes"


def test_a_node_passes_for_no_leaf_and_a_leaf_for_no_node() -> None:
    names = names_of(4)
    nodes = TreeBuilder(names).nodes
    first, second = nodes[4 * 32 : 5 * 32], nodes[5 * 32 : 6 * 32]
    assert node_of(first + second) == top_of(nodes)
    two = BlobRef(2 * CHUNK, CHUNK, bound_top(2 * CHUNK, CHUNK, top_of(nodes)))
    for claimed in (names[0] + names[1], leaf_of(names[0]) + leaf_of(names[1]), first):
        assert not two.proves(0, claimed, second), "bytes that hash like the inner node do not exist"
        assert not two.proves_name(0, claimed, second)
    assert leaf_of(first) != first != node_of(leaf_of(names[0]) + leaf_of(names[2]))


@given(st.binary(min_size=1, max_size=5 * CHUNK), st.data())
@settings(max_examples=60)
def test_bytes_are_proved_at_their_length_and_place_alone(content: bytes, data: st.DataObject) -> None:
    ref, nodes = tree_of(content, CHUNK)
    index = data.draw(st.integers(0, ref.total - 1))
    proof, true = proof_among(nodes, index, ref.total), piece(content, index)
    assert ref.proves(index, true, proof)
    assert not ref.proves(index, true + b"\0", proof)
    assert not ref.proves(index, true[:-1], proof)
    at = data.draw(st.integers(0, len(true) - 1))
    assert not ref.proves(index, true[:at] + bytes((true[at] ^ 1,)) + true[at + 1 :], proof)


def test_a_longer_chunk_under_a_signed_tree_is_no_chunk() -> None:
    """Whoever makes a tree may put the digest of any bytes into it; the sizes decide how many a chunk has."""
    long = bytes(CHUNK + 1)
    nodes = TreeBuilder([blake3(long).digest()]).nodes
    ref = BlobRef(CHUNK, CHUNK, bound_top(CHUNK, CHUNK, top_of(nodes)))
    assert not ref.proves(0, long, b"")
    assert not ref.proves(0, long[:CHUNK], b"")


def test_a_tree_of_a_large_model_is_built_in_bounded_memory() -> None:
    builder = TreeBuilder()
    for number in range(10_000):
        builder.add(number.to_bytes(32, "big"))
    assert sum(map(len, builder._levels)) <= 64 * 10_000
    assert len(builder.nodes) <= 64 * 10_000 + 32 * 20
