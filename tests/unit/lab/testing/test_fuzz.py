"""The fuzz campaign: no kind is forgotten, every target reads its own examples, and what is broken is told."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from p2prl.errors import ConfigError, RemoteProtocolError, StaleWorkError
from p2prl.protocol.join_link import parse_link
from p2prl.protocol.kinds import Kind
from p2prl_lab.testing.fuzz import campaign, mutations
from p2prl_lab.testing.fuzz.campaign import run_target, shares
from p2prl_lab.testing.fuzz.every_target import every_target
from p2prl_lab.testing.fuzz.target import Target
from p2prl_lab.testing.fuzz.values import value_of
from p2prl_lab.testing.fuzz.vector_world import VectorWorld

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "wire.json").read_text())
INPUTS = 2_000


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> list[Target]:
    return every_target(VECTORS, tmp_path_factory.mktemp("fuzz"))


def test_every_kind_is_read_alone_and_by_a_node(targets: list[Target]) -> None:
    names = [target.name for target in targets]
    assert len(set(names)) == len(names)
    for kind in Kind:
        assert f"node: {kind.name.lower()}" in names
        assert f"{'link' if kind < 32 else 'signed'}: {kind.name.lower()}" in names


def test_a_kind_without_a_vector_is_noticed() -> None:
    with pytest.raises(KeyError):
        VectorWorld.of({**VECTORS, "frames": {}})


_NEVER_WHOLE = {
    "tokenizer.json": "bombs are among its examples",
    "config.json": "building a model takes a while, and other tests do",
}


def test_examples_are_accepted(targets: list[Target]) -> None:
    for target in targets:
        if target.name not in _NEVER_WHOLE:
            for example in target.examples[:1]:
                target.decode(example)


def test_a_slice_of_the_campaign_raises_only_protocol_errors(targets: list[Target]) -> None:
    cheap = [target for target in targets if target.name != "config.json"]
    reports = list(campaign.run_campaign(cheap, INPUTS, seed=1))
    assert [report.examples for report in reports if report.failures] == []
    assert sum(report.inputs for report in reports) >= INPUTS
    assert all(report.inputs == report.accepted + sum(report.refused.values()) for report in reports)
    assert sum(report.accepted for report in reports) > INPUTS / 10


def test_the_same_seed_gives_the_same_inputs() -> None:
    seen: list[list[bytes]] = []
    for seed in (1, 1, 2):
        inputs: list[bytes] = []
        run_target(Target(name="list", decode=inputs.append, examples=(b"example",)), 50, seed=seed)
        seen.append(inputs)
    assert seen[0] == seen[1] != seen[2]
    assert len(set(seen[0])) > 30


def test_other_errors_slow_and_hungry_inputs_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(data: bytes) -> None:
        if data[:1] == b"e":
            raise ZeroDivisionError("oops")
        if data[:1] == b"s":
            raise StaleWorkError("late")
        raise RemoteProtocolError("no")

    plain = Target(name="plain", decode=decode, examples=(b"example",))
    report = run_target(plain, 200, seed=1)
    assert 0 < report.failures < report.inputs == 200
    assert "ZeroDivisionError: oops" in report.examples[0]["what"]
    assert bytes.fromhex(report.examples[0]["input"])[:1] == b"e"
    assert report.refused["RemoteProtocolError"] > 0
    late = Target(name="late", decode=decode, examples=(b"s",), allowed=(RemoteProtocolError, StaleWorkError))
    assert "StaleWorkError" in run_target(late, 50, seed=1).refused

    ticks = iter(range(10_000))
    ok = Target(name="ok", decode=len, examples=(b"ok",))
    assert run_target(ok, 5, seed=1, timer=lambda: float(next(ticks))).failures == 0  # each input takes a second
    slow = run_target(ok, 5, seed=1, timer=lambda: 3.0 * next(ticks))
    assert slow.failures == 5
    assert slow.slowest_s == 3.0
    held = iter(campaign.MOST_BYTES * n + n for n in range(20))
    monkeypatch.setattr(campaign, "_peak_bytes", lambda: next(held))
    assert run_target(ok, 5, seed=1).failures == 5


def test_a_hang_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "_HANG_S", 0.05)

    def hang(_: bytes) -> None:
        while True:
            pass

    report = run_target(Target(name="hang", decode=hang, examples=(b"",)), 2, seed=1)
    assert report.failures == 2
    assert "no answer" in report.examples[0]["what"]


def test_inputs_are_spread_by_share() -> None:
    targets = [Target(name=str(n), decode=len, examples=(b"",), share=share) for n, share in enumerate((3.0, 1.0, 0.0))]
    counts = shares(targets, 1_000)
    assert sum(counts) >= 1_000
    assert counts[0] > 2 * counts[1] > 0 < counts[2]


def test_values_follow_the_annotations() -> None:
    class Inner(msgspec.Struct, array_like=True):
        number: int
        texts: tuple[str, ...]
        maybe: bytes | None = None

    rng = random.Random(5)
    for _ in range(50):
        made = value_of(Inner, rng)
        raw = msgspec.msgpack.encode(made)
        assert isinstance(msgspec.msgpack.decode(raw, type=Inner), Inner)

    class Unknown(msgspec.Struct):
        table: dict[str, int]

    with pytest.raises(TypeError, match="teach"):
        value_of(Unknown, rng)


def test_changes_keep_documents_documents() -> None:
    rng = random.Random(3)
    packed = msgspec.msgpack.encode([1, [b"two", "three", 4.0, None], {"five": True}])
    assert len({mutations.of_msgpack(packed, rng) for _ in range(100)}) > 60
    text = b'{"one": [1, 2.0, "three", null], "four": {"five": true}}'
    changed = [mutations.of_json(text, rng) for _ in range(100)]
    assert len(set(changed)) > 60
    for each in changed:
        json.loads(each)
    for junk in (b"\xc1", b"", b"{"):
        assert isinstance(mutations.of_msgpack(junk, rng), bytes)
        assert isinstance(mutations.of_json(junk, rng), bytes)


def test_a_link_with_bytes_that_are_no_text_is_a_wrong_link() -> None:
    link = VECTORS["link"].replace("/tcp/", "/tcp\udcff/")
    with pytest.raises(ConfigError, match="not a complete multiaddr"):
        parse_link(link)
    with pytest.raises(ConfigError, match="not a complete multiaddr"):
        parse_link(VECTORS["link"].replace("203.0.113.7", "a\udcff"))
