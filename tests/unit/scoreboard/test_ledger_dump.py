"""Ledger dump: write, read back, recount; every kind of false or damaged file is refused with its reason."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.errors import ConfigError, IntegrityError, MachineError, RemoteProtocolError
from p2prl.protocol.envelope import open_envelope, seal
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import Countersignature, Verdict
from p2prl.scoreboard.documents import api_views
from p2prl.scoreboard.documents.ranked_leaderboard import leaderboard_document
from p2prl.scoreboard.ledger_dump import verify_dump, verify_source, write_dump
from p2prl.scoreboard.ledger_recount import Countersigned
from p2prl_lab.testing.sample_ledgers import LedgerWriter, MemorySource, identity, sample_run

WRITER = sample_run(0, steps=6)
SOURCE = MemorySource(WRITER, signed_head=WRITER.signed_head())


def test_a_dump_recounts_to_the_same_totals(tmp_path: Path) -> None:
    assert write_dump(SOURCE, tmp_path / "run.ledger") == len(WRITER.entries)
    result = verify_dump(tmp_path / "run.ledger", run=WRITER.run)
    assert (result.height, result.root) == (len(WRITER.entries), WRITER.head.hex())
    assert result.signed_height == len(WRITER.entries)
    snapshot = SOURCE.snapshot()
    assert result.totals == api_views.run_document(snapshot).totals
    assert result.people == leaderboard_document(snapshot, by="people", limit=500).people
    assert result.validators == leaderboard_document(snapshot, by="validators", limit=500).validators
    assert verify_source(SOURCE) == result
    assert result.is_whole
    assert [path.name for path in tmp_path.iterdir()] == ["run.ledger"]


def test_a_dump_into_a_missing_folder_names_it(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=f"no folder {tmp_path}/a/b$"):
        write_dump(SOURCE, tmp_path / "a" / "b" / "run.ledger")


def test_the_file_is_a_msgpack_stream_of_the_signed_bytes(tmp_path: Path) -> None:
    write_dump(SOURCE, tmp_path / "x")
    header = msgspec.msgpack.encode(["p2prl/ledger-export/v2", WRITER.manifest_raw, WRITER.signed_head(), []])
    expected = b"".join(msgspec.msgpack.encode(item) for item in [header, *WRITER.entries])
    assert (tmp_path / "x").read_bytes() == expected


def test_a_dump_of_an_older_release_is_read(tmp_path: Path) -> None:
    header = msgspec.msgpack.encode(["p2prl/ledger-export/v1", WRITER.manifest_raw, WRITER.signed_head()])
    (tmp_path / "old").write_bytes(b"".join(msgspec.msgpack.encode(item) for item in [header, *WRITER.entries]))
    result = verify_dump(tmp_path / "old")
    assert result.is_whole
    assert result.countersigned == Countersigned()


def test_a_countersignature_of_another_history_is_a_fork(tmp_path: Path) -> None:
    other = WRITER.signed_head(height=7, head=bytes(32))
    witness = seal(identity("validator"), Countersignature(other), run=WRITER.run, now=WRITER.now)
    header = ["p2prl/ledger-export/v2", WRITER.manifest_raw, WRITER.signed_head(), [witness]]
    items = [msgspec.msgpack.encode(header), *WRITER.entries]
    (tmp_path / "x").write_bytes(b"".join(map(msgspec.msgpack.encode, items)))
    with pytest.raises(IntegrityError, match=r"two different histories of 7 .* at entry 6 or before it"):
        verify_dump(tmp_path / "x")


def test_a_dump_ends_where_its_snapshot_does(tmp_path: Path) -> None:
    whole = sample_run(0, steps=4)
    growing = LedgerWriter(manifest=whole.manifest)
    source = MemorySource(growing)
    for envelope in whole.envelopes[:5]:
        growing.append(envelope)
    snapshot = source.snapshot()
    for envelope in whole.envelopes[5:]:
        growing.append(envelope)
    assert write_dump(source, tmp_path / "x", snapshot=snapshot) == 5 < len(growing.entries)
    assert verify_dump(tmp_path / "x").height == 5


def test_an_empty_ledger_is_valid(tmp_path: Path) -> None:
    assert write_dump(MemorySource(LedgerWriter()), tmp_path / "x") == 0
    result = verify_dump(tmp_path / "x")
    assert (result.height, result.root, result.people) == (0, "00" * 32, [])


def test_a_file_cut_short_is_noticed_at_every_byte(tmp_path: Path) -> None:
    write_dump(SOURCE, tmp_path / "x")
    whole = (tmp_path / "x").read_bytes()
    for size in [0, 1, 2, 3, 50, *range(len(whole) - 700, len(whole))]:
        (tmp_path / "x").write_bytes(whole[:size])
        with pytest.raises((ConfigError, IntegrityError, RemoteProtocolError)):
            verify_dump(tmp_path / "x")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 7))
def test_one_flipped_bit_is_always_refused(tmp_path_factory: pytest.TempPathFactory, place: int, bit: int) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped"
    write_dump(SOURCE, path)
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises((ConfigError, IntegrityError, RemoteProtocolError)):
        verify_dump(path, run=WRITER.run)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused_with_a_reason(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    with pytest.raises((ConfigError, IntegrityError, RemoteProtocolError)):
        verify_dump(path)


def test_a_huge_length_is_refused_before_reading(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xc6\xff\xff\xff\xff")
    with pytest.raises(RemoteProtocolError, match="4294967295 bytes"):
        verify_dump(tmp_path / "x")


def test_another_runs_ledger_is_refused(tmp_path: Path) -> None:
    write_dump(SOURCE, tmp_path / "x")
    with pytest.raises(IntegrityError, match="another run"):
        verify_dump(tmp_path / "x", run=bytes(32))


def test_the_broken_entry_is_named(tmp_path: Path) -> None:
    class Swapped(MemorySource):
        def entries(self, from_height: int, limit: int) -> list[bytes]:
            entries = list(super().entries(from_height, limit))
            entries[3], entries[4] = entries[4], entries[3]
            return entries

    write_dump(Swapped(WRITER), tmp_path / "x")
    with pytest.raises(IntegrityError, match="entry 3"):
        verify_dump(tmp_path / "x")


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (WRITER.signed_head(head=bytes(32)), "differs from the one the learner signed"),
        (WRITER.signed_head(height=99), f"ends at entry {len(WRITER.entries)}"),
    ],
)
def test_a_ledger_is_held_to_its_signed_head(tmp_path: Path, head: bytes, message: str) -> None:
    write_dump(MemorySource(WRITER, signed_head=head), tmp_path / "x")
    with pytest.raises(IntegrityError, match=message):
        verify_dump(tmp_path / "x")


def test_a_dump_ends_with_what_the_learner_has_signed(tmp_path: Path) -> None:
    writer = sample_run(0, steps=4)
    signed, height = writer.signed_head(), len(writer.entries)
    writer.add(identity("a stranger"), Verdict(bytes(32), bytes(32), 0, True, "", 0, 0, 0.0))
    source = MemorySource(writer, signed_head=signed)
    assert write_dump(source, tmp_path / "x") == height == len(writer.entries) - 1
    assert verify_dump(tmp_path / "x").is_whole
    assert (verify_source(source).unsigned, verify_source(source).is_whole) == (1, False)


def test_a_dump_cut_short_and_linked_again_is_not_whole(tmp_path: Path) -> None:
    cut = LedgerWriter(manifest=WRITER.manifest)
    for envelope in WRITER.envelopes[:9]:
        cut.append(envelope)
    write_dump(MemorySource(cut), tmp_path / "x")
    result = verify_dump(tmp_path / "x", run=WRITER.run)
    assert (result.signed_height, result.unsigned, result.is_whole) == (None, 9, False)
    write_dump(MemorySource(cut, signed_head=WRITER.signed_head()), tmp_path / "x")
    with pytest.raises(IntegrityError, match=f"ends at entry 9, but the learner signed {len(WRITER.entries)}"):
        verify_dump(tmp_path / "x")


def test_verdicts_cannot_be_dropped_from_a_dump(tmp_path: Path) -> None:
    linked = LedgerWriter(manifest=WRITER.manifest)
    for envelope in WRITER.envelopes:
        if open_envelope(envelope, now=None).kind is not Kind.VERDICT:
            linked.append(envelope)
    assert 0 < len(linked.entries) < len(WRITER.entries)
    for head in (WRITER.signed_head(), WRITER.signed_head(height=len(linked.entries))):
        write_dump(MemorySource(linked, signed_head=head), tmp_path / "x")
        with pytest.raises(IntegrityError, match="the learner signed"):
            verify_dump(tmp_path / "x")


def test_a_valid_prefix_is_not_a_valid_ledger() -> None:
    with pytest.raises(IntegrityError, match="entry 7"):
        verify_source(MemorySource(WRITER, incident="entry 7 of the ledger is broken"))


def test_disk_errors_have_a_remedy(tmp_path: Path) -> None:
    for attempt in (
        lambda: write_dump(SOURCE, tmp_path / "no" / "such" / "folder"),
        lambda: verify_dump(tmp_path / "missing"),
    ):
        with pytest.raises(MachineError) as caught:
            attempt()
        assert caught.value.remedy
