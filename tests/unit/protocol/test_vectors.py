"""Golden vectors: the committed bytes are still produced and still decode."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from p2prl.protocol import frames, limits
from p2prl.protocol.envelope import SIGNED_MESSAGES, body_of, envelope_digest, open_envelope
from p2prl.protocol.identity import Identity
from p2prl.protocol.join_link import parse_link
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_chain import GENESIS, follow
from p2prl.protocol.link_messages import LINK_MESSAGES
from p2prl.protocol.manifests import PolicyManifest, RunManifest, blob_of
from p2prl.protocol.rollout_group import GroupHeader, RolloutGroup
from p2prl.protocol.signed_group import read_group
from p2prl.protocol.wire_codec import encode

ROOT = Path(__file__).parents[3]
WIRE: dict[str, Any] = json.loads((ROOT / "tests/vectors/wire.json").read_text())


def make_vectors() -> Any:
    spec = importlib.util.spec_from_file_location("make_vectors", ROOT / "scripts/make_vectors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made() -> dict[str, Any]:
    return json.loads(json.dumps(make_vectors().vectors()))  # type: ignore[no-any-return]


@pytest.mark.parametrize("part", sorted(WIRE))
def test_bytes_are_unchanged(part: str) -> None:
    assert made()[part] == WIRE[part], "a changed vector is a changed protocol: see scripts/make_vectors.py"


def test_every_kind_has_a_vector() -> None:
    assert {Kind[name.upper()] for name in WIRE["envelopes"]} == set(SIGNED_MESSAGES)
    assert set(WIRE["frames"]) == {struct.__name__ for struct in LINK_MESSAGES.values()}


def test_a_run_manifest_of_an_earlier_release_decodes() -> None:
    """Its envelope ends before the fields of data, and names the same run as ever."""
    old = json.loads((ROOT / "tests/vectors/earlier.json").read_text())["run_manifest"]
    opened = open_envelope(bytes.fromhex(old["bytes"]), now=None)
    manifest = body_of(opened, RunManifest)
    manifest.check()
    assert opened.digest == bytes.fromhex(old["digest"])
    assert (manifest.name, manifest.data_sets, manifest.prompt_frame) == ("vectors", (), ("", ""))
    assert manifest.turn_frame == ("", "")


def encode_before_seeds(group: RolloutGroup) -> bytes:
    """The encoding of a release whose groups did not name the rule of their seeds."""
    return msgspec.msgpack.encode(msgspec.msgpack.decode(encode(group))[:-1])


def test_documents_of_wire_version_6_name_the_same_blobs() -> None:
    """They list their chunks. Run folders, journals and spools hold them, and so does a run that began with them."""
    old = json.loads((ROOT / "tests/vectors/wire6.json").read_text())
    opened = {
        name: open_envelope(bytes.fromhex(vector["bytes"]), now=None) for name, vector in old["envelopes"].items()
    }
    for name, vector in old["envelopes"].items():
        assert opened[name].digest == bytes.fromhex(vector["digest"])
    run, policy = body_of(opened["run_manifest"], RunManifest), body_of(opened["policy_manifest"], PolicyManifest)
    header = body_of(opened["group_header"], GroupHeader)
    run.check()
    policy.check(weight_bytes=policy.weights.size_bytes)
    header.check()
    blob = run.files[0].blob
    assert blob.root.hex() == policy.weights.root.hex() == old["blob_root"]
    assert blob.tree_hash.hex() == policy.weights.tree_hash.hex() == WIRE["digests"]["blob_tree"]
    body = encode_before_seeds(make_vectors().large_group(header.policy))
    assert header.body.tree_hash == blob_of(body, limits.GROUP_PART_BYTES).tree
    assert read_group(opened["group_header"].raw, body).digest == opened["group_header"].digest


def test_committed_bytes_decode() -> None:
    run = bytes.fromhex(WIRE["envelopes"]["run_manifest"]["digest"])
    for name, vector in WIRE["envelopes"].items():
        opened = open_envelope(bytes.fromhex(vector["bytes"]), now=None)
        assert opened.kind.name.lower() == name
        assert opened.digest == envelope_digest(opened.raw) == bytes.fromhex(vector["digest"])
    for name, frame in WIRE["frames"].items():
        (message,) = frames.unpack(bytes.fromhex(frame))
        assert type(message).__name__ == name
    learner = Identity.from_words(WIRE["identity"]["words"])
    head = GENESIS
    for height, raw in enumerate(WIRE["ledger"]["entries"]):
        _, head = follow(bytes.fromhex(raw), height=height, head=head, run=run, learner=learner.public_key)
        assert head.hex() == WIRE["ledger"]["heads"][height]
    assert parse_link(WIRE["link"]).run == run
