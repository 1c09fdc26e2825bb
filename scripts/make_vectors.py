"""Print the golden vectors of the wire: `python scripts/make_vectors.py > tests/vectors/wire.json`.

A changed vector means a changed protocol, which old peers would not understand. Do not regenerate the file without a
new wire version, domain string or kind number.
"""

from __future__ import annotations

import json

import msgspec

from p2prl.protocol import frames, limits, wire_version
from p2prl.protocol.delegation import sign_delegation, sign_revocation
from p2prl.protocol.digests import Digest, chunk_digest, digest
from p2prl.protocol.envelope import NO_RUN, envelope_digest, seal
from p2prl.protocol.hash_tree import proof_among
from p2prl.protocol.identity import Identity
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_chain import GENESIS, append
from p2prl.protocol.ledger_messages import (
    Countersignature,
    LedgerHead,
    Receipt,
    Receipts,
    ReceiptState,
    StorageReceipt,
    Verdict,
    VerdictCheck,
    VerdictChecks,
)
from p2prl.protocol.link_messages import (
    BlobQuery,
    Chunk,
    ChunkCancel,
    ChunkGrant,
    ChunkRefused,
    ChunkRequest,
    FollowPiece,
    FollowQuery,
    GrantDeclined,
    Have,
    Hello,
    LedgerPage,
    LedgerQuery,
    LinkRates,
    Meeting,
    MeetingRequest,
    Offer,
    Padding,
    Push,
    Want,
)
from p2prl.protocol.manifests import (
    NO_BASE,
    DataSet,
    Patch,
    PolicyManifest,
    RunFile,
    RunManifest,
    Sampling,
    TaskShare,
    TensorSpec,
    blob_of,
    layout_digest,
    tree_of,
)
from p2prl.protocol.membership_statements import invite_text, sign_membership, sign_team_name
from p2prl.protocol.peer_messages import Introduction, PeerRecord, Standby
from p2prl.protocol.policy_head import PatchEdge, PolicyHead
from p2prl.protocol.rollout_group import Completion, EngineClass, RolloutGroup
from p2prl.protocol.signed_group import seal_group
from p2prl.protocol.wire_codec import Wire
from p2prl.protocol.work_slots import SEED_RULE, RowOrderKey, SlotKey, row_of, slot_work

LEARNER = Identity(bytes(range(16)))
VOLUNTEER = Identity(bytes(range(16, 32)))
TEAM_NAME = sign_team_name(Identity(bytes(range(32, 48))), "Red Pandas", serial=1_800_000_000_000)
NOW = 1_800_000_000.125
BLOB, NODES = tree_of(bytes(range(256)) * 40, 4096)
LAYOUT = (TensorSpec("embed.weight", "bfloat16", (18, 48)), TensorSpec("norm.weight", "float32", (48,)))
RUN_MANIFEST = RunManifest(
    name="vectors",
    goal="Hold the wire still.",
    learner=LEARNER.public_key,
    created_ms=1_800_000_000_000,
    base_model="none",
    parameters=59_000,
    layout=layout_digest(LAYOUT),
    dtype="bfloat16",
    files=(RunFile("config.json", BLOB),),
    tokenizer=bytes(range(32)),
    tasks=(TaskShare("chain4", 3.0), TaskShare("sort", 1.0)),
    sampling=Sampling(1.0, 8, 8),
    staleness_bound=64,
    publish_every=1,
    reward="success",
    licence="Apache-2.0",
    content_policy="Arithmetic.",
    compute_dtype="float32",
    data_sets=(DataSet("sort", 400, BLOB, BLOB, '{"rewards":[{"scorer":"exact","weight":1.0}]}', BLOB, bytes(32)),),
    prompt_frame=("<user>", "<assistant>"),
    turn_frame=("<end><user>", "<assistant>"),
)


def policy_head(run: Digest, policy: PolicyManifest, policy_envelope: bytes) -> PolicyHead:
    """The head that announces a second version with patches."""
    stream = blob_of(bytes(range(256)) * 20, 4096)
    patches = (Patch(0, policy.weights_digest, stream), Patch(NO_BASE, b"", stream))
    state = digest("p2prl/vector/v1", b"next state")
    patched = PolicyManifest(
        1, 2, BLOB, state, envelope_digest(policy_envelope), bytes(range(32)), 1_800_000_060_000, patches
    )
    patched_envelope = seal(LEARNER, patched, run=run, now=NOW)
    edges = (PatchEdge(1, 0, stream.size_bytes, envelope_digest(patched_envelope)),)
    return PolicyHead(
        1, envelope_digest(patched_envelope), 0, BLOB.size_bytes, edges, 1_800_000_090_000, 1_800_000_600_000
    )


def rollout_group(policy: Digest) -> RolloutGroup:
    """A group of two completions."""
    return RolloutGroup(
        version=0,
        policy=policy,
        slot=7,
        task="chain4",
        prompt=b"".join(token.to_bytes(4, "little") for token in (1, 2, 3)),
        completions=(Completion(bytes((5, 0, 0, 0, 6, 0, 0, 0)), bytes((0, 188, 0, 192)), True, 1.0),) * 2,
        engine=EngineClass("transformers", "5.19.0", "float32", "cpu"),
        seconds=0.5,
        seeds=SEED_RULE,
    )


def large_group(policy: Digest) -> RolloutGroup:
    """The same slot with two completions of 32,768 tokens, whose ids count from 0: more than an envelope holds."""
    tokens = b"".join(token.to_bytes(4, "little") for token in range(limits.MAX_COMPLETION_TOKENS))
    completion = Completion(tokens, bytes((0, 188)) * limits.MAX_COMPLETION_TOKENS, False, 0.0)
    return msgspec.structs.replace(rollout_group(policy), completions=(completion,) * 2)


def link_messages(run: Digest, name: Digest) -> tuple[Wire, ...]:
    """One message of every kind that travels on a link."""
    return (
        Hello(wire_version.WIRE_VERSION, run, int(Role.LEARNER), 1_800_000_000_125, -1, 2),
        Offer((name, run)),
        Want((name,)),
        Push(b"envelope"),
        Have(BLOB.root, b"\x05"),
        ChunkRequest(BLOB.root, 0),
        Chunk(BLOB.root, 1, proof_among(NODES, 1, BLOB.total), b"chunk"),
        ChunkRefused(BLOB.root, 0, 500),
        BlobQuery(BLOB.root),
        LinkRates(20_000, 100_000),
        ChunkGrant(BLOB.root, 1),
        GrantDeclined(BLOB.root, 500),
        ChunkCancel(BLOB.root, 0),
        LedgerQuery(2),
        LedgerPage(0, (b"one", b"two")),
        MeetingRequest(VOLUNTEER.public_key),
        Meeting(VOLUNTEER.public_key, "/ip4/44.131.7.1/tcp/4001", True),
        Padding(bytes(3)),
        FollowQuery(bytes(72), 1, 2, -1, 0),
        FollowPiece(2, 0, 1, b"piece"),
    )


def slot(run: Digest, beacon: bytes) -> dict[str, object]:
    """The work of one slot, and the order of tasks and rows of a peer."""
    peer = VOLUNTEER.public_key
    tasks = RUN_MANIFEST.tasks
    work = slot_work(SlotKey(run=run, beacon=beacon, peer=peer, slot=7), tasks, 3)
    return {
        "beacon": beacon.hex(),
        "task": work.task,
        "prompt_seed": work.prompt_seed,
        "sample_seeds": list(work.sample_seeds),
        "number": work.number,
        "tasks_of_slots_0_to_15": [
            slot_work(SlotKey(run, beacon, peer, number), tasks, 1).task for number in range(16)
        ],
        "rows_of_sort_0_to_15": [row_of(RowOrderKey(run, peer, "sort"), number, 1_000) for number in range(16)],
    }


def ledger_heads(run: Digest, head: LedgerHead) -> dict[str, bytes]:
    """A ledger head, and a countersignature of it."""
    signed = seal(LEARNER, head, run=run, now=NOW)
    return {
        "ledger_head": signed,
        "countersignature": seal(VOLUNTEER, Countersignature(signed), run=run, now=NOW),
    }


def owners_statements(run: Digest) -> dict[str, bytes]:
    """A delegation, a revocation and a membership, as a machine sends them."""
    term = {"serial": 1_800_000_000_000, "expires_ms": 1_863_000_000_000}
    delegation = sign_delegation(LEARNER, VOLUNTEER.public_key, name="attic", **term)
    revocation = sign_revocation(LEARNER, VOLUNTEER.public_key, serial=1_800_000_000_001, from_ms=1_799_000_000_000)
    membership = sign_membership(VOLUNTEER, TEAM_NAME, serial=1_800_000_000_000)
    return {
        "delegation": seal(VOLUNTEER, delegation, run=run, now=NOW),
        "revocation": seal(VOLUNTEER, revocation, run=run, now=NOW),
        "membership": seal(VOLUNTEER, membership, run=run, now=NOW),
    }


def vectors() -> dict[str, object]:
    """Every vector, as JSON values; bytes are hexadecimal."""
    run_envelope = seal(LEARNER, RUN_MANIFEST, run=NO_RUN, now=NOW)
    run = envelope_digest(run_envelope)
    policy = PolicyManifest(0, 0, BLOB, digest("p2prl/vector/v1", b"state"), b"", bytes(range(32)), 1_800_000_000_000)
    policy_envelope = seal(LEARNER, policy, run=run, now=NOW)
    group = rollout_group(envelope_digest(policy_envelope))
    group_envelope = seal(VOLUNTEER, group, run=run, now=NOW)
    name = envelope_digest(group_envelope)
    receipt = Receipt(
        name, VOLUNTEER.public_key, 0, 7, int(ReceiptState.VERIFIED), "", tokens=4, completions=2, reward=1.0
    )
    receipts = seal(LEARNER, Receipts(1, (receipt,)), run=run, now=NOW)
    verdict_body = Verdict(
        name, VOLUNTEER.public_key, 0, True, "", tokens=4, mismatched=0, worst_margin=0.0, probes=b"\x00\xbc" * 16
    )
    verdict = seal(VOLUNTEER, verdict_body, run=run, now=NOW)
    first, head = append(0, GENESIS, receipts)
    second, middle = append(1, head, verdict)
    checks = seal(LEARNER, VerdictChecks((VerdictCheck(VOLUNTEER.public_key, name, 1, 4),)), run=run, now=NOW)
    third, top = append(2, middle, checks)
    record = PeerRecord(int(Role.VOLUNTEER), ("/ip4/203.0.113.7/tcp/4001",), 0, 1_799_999_999_000)
    envelopes: dict[str, bytes] = {
        "run_manifest": run_envelope,
        "policy_manifest": policy_envelope,
        "policy_head": seal(LEARNER, policy_head(run, policy, policy_envelope), run=run, now=NOW),
        "rollout_group": group_envelope,
        "receipts": receipts,
        "verdict": verdict,
        "verdict_checks": checks,
        "storage_receipt": seal(LEARNER, StorageReceipt((name,)), run=run, now=NOW),
        **ledger_heads(run, LedgerHead(3, top, 1, True)),
        "introduction": seal(LEARNER, Introduction(VOLUNTEER.public_key, (LEARNER.public_key,)), run=run, now=NOW),
        "standby": seal(LEARNER, Standby((VOLUNTEER.public_key,), int(NOW + 300) * 1000), run=run, now=NOW),
        "peer_record": seal(VOLUNTEER, record, run=run, now=NOW),
        "group_header": seal_group(VOLUNTEER, large_group(envelope_digest(policy_envelope)), run=run, now=NOW)[0],
        **owners_statements(run),
    }
    address = f"/ip4/203.0.113.7/tcp/4001/p2p/{LEARNER.peer_id}"
    return {
        "wire_version": wire_version.WIRE_VERSION,
        "identity": {
            "entropy": LEARNER.entropy.hex(),
            "words": LEARNER.words,
            "secret_seed": LEARNER.secret_seed.hex(),
            "public_key": LEARNER.public_key.hex(),
            "peer_id": LEARNER.peer_id,
        },
        "digests": {
            "empty": digest("p2prl/vector/v1").hex(),
            "two_parts": digest("p2prl/vector/v1", b"a", b"bc").hex(),
            "chunk": chunk_digest(b"chunk").hex(),
            "blob_root": BLOB.root.hex(),
            "blob_tree": BLOB.tree_hash.hex(),
            "blob_proofs": [proof_among(NODES, index, BLOB.total).hex() for index in range(BLOB.total)],
            "layout": layout_digest(LAYOUT).hex(),
            "directory_key": digest("p2prl/directory/v1", run).hex(),
        },
        "envelopes": {
            kind: {"bytes": raw.hex(), "digest": envelope_digest(raw).hex()} for kind, raw in envelopes.items()
        },
        "frames": {type(message).__name__: frames.pack(message).hex() for message in link_messages(run, name)},
        "ledger": {
            "entries": [raw.hex() for raw in (first, second, third)],
            "heads": [at.hex() for at in (head, middle, top)],
        },
        "slot": slot(run, policy.beacon),
        "link": str(JoinLink("vectors", run, (address,))),
        "invite": invite_text(TEAM_NAME),
    }


if __name__ == "__main__":
    print(json.dumps(vectors(), indent=1))
