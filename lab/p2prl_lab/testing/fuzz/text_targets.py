"""Targets of texts and of replies: links and statements a person pastes, addresses, and what confined processes say."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from p2prl.errors import ConfigError, IdentityError
from p2prl.models.tokenizer import messages as tokenizer_messages
from p2prl.net.transports import multiaddrs
from p2prl.net.transports.hivemind.dial_back import addresses_to_try, asked_addresses
from p2prl.protocol.delegation import parse_statement, sign_delegation, sign_revocation, statement_text
from p2prl.protocol.join_link import parse_link
from p2prl.protocol.kinds import Kind
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.membership_statements import (
    invite_text,
    membership_text,
    parse_invite,
    parse_membership,
    sign_membership,
    sign_team_name,
)
from p2prl.protocol.typed_names import typed_name
from p2prl.protocol.wire_codec import decode
from p2prl.swarm.peers.dial_rules import DialRules
from p2prl.tasks.sandbox import frames as scorer_frames
from p2prl.tasks.scorers.spec import parse_spec
from p2prl_lab.testing.fuzz import mutations
from p2prl_lab.testing.fuzz.target import PROTOCOL_ERRORS, Target
from p2prl_lab.testing.fuzz.vector_world import LEARNER, VOLUNTEER, VectorWorld

_ADDRESSES = (
    b"/ip4/203.0.113.7/tcp/4001",
    b"/ip6/2001:db8::1/udp/4001/quic-v1",
    b"/dns4/example.org/tcp/443/wss",
    b"/ip4/203.0.113.7/tcp/4001/p2p-circuit",
)


_AUTONAT_QUESTION = bytes.fromhex("08001216" + "0a14" + "0a0269641208" + "04cb007107060fa1" + "120429000001")
"""From a peer called "id", to be dialed at /ip4/203.0.113.7/tcp/4001 and at bytes that are no address."""


def text_targets(world: VectorWorld) -> Iterator[Target]:
    """All of them. Texts arrive as UTF-8, with surrogates for what is none."""
    owner, machine = LEARNER, VOLUNTEER.public_key
    term = {"serial": 1_800_000_000_000, "expires_ms": 1_863_000_000_000}
    statements = (
        sign_delegation(owner, machine, name="attic", **term),
        sign_revocation(owner, machine, serial=1_800_000_000_001, from_ms=0),
    )
    yield Target(
        name="join link",
        decode=lambda data: str(parse_link(_text(data))),
        examples=(world.link.encode(),),
        allowed=(ConfigError,),
        share=4.0,
    )
    yield Target(
        name="owner's statement",
        decode=lambda data: parse_statement(_text(data)),
        examples=tuple(statement_text(each).encode() for each in statements),
        allowed=(IdentityError,),
    )
    name = sign_team_name(owner, "Red Pandas", serial=1)
    yield Target(
        name="team's invite",
        decode=lambda data: parse_invite(_text(data)),
        examples=(invite_text(name).encode(),),
        allowed=(IdentityError,),
    )
    yield Target(
        name="membership",
        decode=lambda data: parse_membership(_text(data)),
        examples=(membership_text(sign_membership(VOLUNTEER, name, serial=1)).encode(),),
        allowed=(IdentityError,),
    )
    yield Target(
        name="team's name",
        decode=lambda data: typed_name(_text(data)),
        examples=(b"Red Pandas",),
        allowed=(ConfigError,),
    )
    rules, peer = DialRules(), VOLUNTEER.peer_id
    binary = tuple(multiaddrs.to_bytes(address.decode()) for address in _ADDRESSES)
    yield Target(
        name="address to dial",
        decode=lambda data: rules.allows(_text(data), peer),
        examples=_ADDRESSES,
        allowed=(),
        share=4.0,
    )
    yield Target(
        name="address text",
        decode=lambda data: multiaddrs.from_bytes(multiaddrs.to_bytes(_text(data))),
        examples=_ADDRESSES,
        allowed=(ConfigError,),
        share=4.0,
    )
    yield Target(name="address bytes", decode=multiaddrs.from_bytes, examples=binary, allowed=(), share=4.0)
    yield Target(name="AutoNAT question", decode=_tried_addresses, examples=(_AUTONAT_QUESTION,), share=4.0)
    manifest = decode(world.bodies[Kind.RUN_MANIFEST], RunManifest, limit_bytes=1 << 20)
    yield Target(
        name="scoring spec",
        decode=lambda data: parse_spec(_text(data)),
        examples=tuple(data.scoring.encode() for data in manifest.data_sets),
        changes=(mutations.of_json, mutations.of_bytes),
        allowed=PROTOCOL_ERRORS,
    )
    yield Target(name="tokenizer's reply", decode=_tokenizer_reply, examples=_tokenizer_replies(), share=4.0)
    reply = scorer_frames.reply_bytes(scorer_frames.Reply(0, scorer_frames.SCORED, 1.0, "why", (0.5, None)))
    yield Target(name="scorer's reply", decode=_scorer_reply, examples=(reply,), share=4.0)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _tried_addresses(data: bytes) -> object:
    seen = "/ip4/44.1.2.3/tcp/4001"
    return addresses_to_try(asked_addresses(data), seen, VOLUNTEER.peer_id, DialRules())


def _tokenizer_replies() -> tuple[bytes, ...]:
    done = tokenizer_messages.DONE
    payloads = (
        tokenizer_messages.rows_payload([[1, 2, 3], [4]]),
        tokenizer_messages.ready_payload(3, ("landlock", "seccomp")),
    )
    return tuple(tokenizer_messages.message(done, payload) for payload in payloads)


def _tokenizer_reply(data: bytes) -> object:
    head = tokenizer_messages.HEADER.size
    kind, length = tokenizer_messages.read_header(data[:head].ljust(head, b"\0"))
    payload = data[head : head + length]
    if kind == tokenizer_messages.REFUSED:
        return tokenizer_messages.read_reason(payload)
    tokenizer_messages.read_ready(payload)
    return tokenizer_messages.read_rows(payload, count=2)


def _scorer_reply(data: bytes) -> object:
    size = scorer_frames.REPLY_BYTES
    head = data[:size].ljust(size, b"\0")
    length = scorer_frames.rest_bytes(head)
    scorer_frames.payload_bytes(struct.pack("<I", length))
    return scorer_frames.read_reply(head + data[size : size + length], expected=0)
