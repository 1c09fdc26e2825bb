"""Ledger follower: false pages, forks that a signed head exposes, equivocation, restarts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.net.process import control
from p2prl.protocol import ledger_chain, limits
from p2prl.protocol.envelope import seal
from p2prl.protocol.join_link import JoinLink, parse_link
from p2prl.protocol.ledger_chain import page_of
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.scoreboard.ledger.ledger_follower import ASK_S, LedgerFollower
from p2prl.scoreboard.ledger.ledger_store import LedgerStore
from p2prl.swarm import signals
from p2prl_lab.testing.sample_ledgers import LedgerWriter, identity, receipt, sample_run, verdict_on

WRITER = sample_run(0, steps=10)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    opened = LedgerStore(tmp_path / "board" / "ledger_chain.db", run=WRITER.run)
    yield opened
    opened.close()


def started(store: LedgerStore) -> LedgerFollower:
    follower = LedgerFollower(store, run=WRITER.run)
    follower.receive(control.RunKnown(WRITER.manifest_raw), 0.0)
    return follower


def page(entries: list[bytes], start: int, count: int = 64) -> signals.LedgerArrived:
    return signals.LedgerArrived(start, tuple(entries[start : start + count]))


def signed(follower: LedgerFollower, at: int = len(WRITER.entries), now: float = 0.0) -> list[control.ToNetwork]:
    """The learner's head of this many entries arrives."""
    return follower.receive(control.EnvelopeArrived(WRITER.signed_head(height=at, head=_head_at(at))), now)


def height(follower: LedgerFollower) -> int:
    board = follower.snapshot().board
    assert board is not None
    return board.height


def fork() -> LedgerWriter:
    """The learner's first entries, then invented verdicts of a stranger: a chain whose entries all verify."""
    liar = LedgerWriter()
    for envelope in WRITER.envelopes[:6]:
        liar.append(envelope)
    for number in range(9):
        liar.add(identity("eve"), verdict_on(receipt(number, identity("volunteer 0"))))
    return liar


def test_asks_for_entries_and_announces_its_height(store: LedgerStore) -> None:
    follower = LedgerFollower(store, run=WRITER.run)
    assert follower.handle_timer(0.0) == []
    assert follower.snapshot().run is None
    follower.receive(control.RunKnown(WRITER.manifest_raw), 0.0)
    assert follower.handle_timer(0.0) == [signals.AskLedger(0)]
    assert follower.handle_timer(1.0) == []
    assert follower.receive(page(WRITER.entries, 0, 8), 1.0) == []
    assert height(follower) == 0, "nothing is counted or served before the learner has signed it"
    assert signed(follower, 8, 1.0) == [signals.SetLedgerHeight(8)]
    assert follower.handle_timer(1.0) == [signals.AskLedger(8)]
    signed(follower, now=1.2)
    told = follower.receive(page(WRITER.entries, 5), 1.5)  # a page may overlap what is held
    assert told == [signals.SetLedgerHeight(len(WRITER.entries))]
    assert height(follower) == len(WRITER.entries)
    assert follower.receive(page(WRITER.entries, 5), 1.6) == []
    assert follower.receive(signals.LedgerArrived(len(WRITER.entries) + 1, (b"x",)), 1.7) == []
    assert store.entries(0, 999) == WRITER.entries


def test_asks_at_once_after_news_else_every_few_seconds(store: LedgerStore) -> None:
    follower = started(store)
    assert follower.handle_timer(0.0)
    assert not follower.handle_timer(ASK_S - 0.1)
    assert follower.handle_timer(ASK_S)
    follower.receive(control.EnvelopeArrived(WRITER.envelopes[0]), ASK_S + 0.1)
    assert not follower.handle_timer(ASK_S + 0.1)  # a burst asks once
    assert follower.handle_timer(ASK_S + 0.3)


def test_serves_its_entries(store: LedgerStore) -> None:
    follower = started(store)
    follower.receive(page(WRITER.entries, 0), 0.0)
    assert follower.receive(signals.LedgerWanted("peer", 4), 0.0) == [signals.SendLedger("peer", 4, ())]
    signed(follower, 9)
    assert follower.receive(signals.LedgerWanted("peer", 4), 0.0) == [
        signals.SendLedger("peer", 4, tuple(WRITER.entries[4:9]))
    ]
    signed(follower)
    assert follower.receive(signals.LedgerWanted("peer", 4), 0.0) == [
        signals.SendLedger("peer", 4, tuple(WRITER.entries[4:]))
    ]
    assert follower.receive(signals.LedgerWanted("peer", 999), 0.0) == [signals.SendLedger("peer", 999, ())]


def test_a_reply_is_bounded_in_count_and_size() -> None:
    assert len(page_of([b"x"] * 100)) == limits.MAX_LEDGER_ENTRIES_PER_REPLY
    big = [bytes(60_000)] * 9
    assert len(page_of(big)) == limits.MAX_CONTROL_FRAME_BYTES // 2 // 60_000
    assert len(page_of([bytes(limits.MAX_ENVELOPE_BYTES)] * 2)) == 1
    assert page_of([]) == ()


def test_a_page_is_used_up_to_its_first_bad_entry(store: LedgerStore) -> None:
    follower = started(store)
    follower.receive(signals.LedgerArrived(0, (*WRITER.entries[:3], b"junk", *WRITER.entries[4:9])), 0.0)
    assert store.height == 3
    signed(follower)
    follower.receive(page(WRITER.entries, 3), 0.0)
    assert height(follower) == len(WRITER.entries)


def test_the_first_head_of_a_new_run_is_heard(store: LedgerStore) -> None:
    """Its learner signs one before there are receipts."""
    follower = started(store)
    head = seal(WRITER.learner, LedgerHead(0, ledger_chain.GENESIS, 3, False), run=WRITER.run, now=1e9)
    follower.receive(control.EnvelopeArrived(head), 1e9)
    assert follower.snapshot().learner_step == 3
    stranger = seal(identity("eve"), LedgerHead(0, ledger_chain.GENESIS, 4, False), run=WRITER.run, now=1e9)
    with pytest.raises(RemoteProtocolError):
        follower.receive(control.EnvelopeArrived(stranger), 1e9)
    follower.receive(page(WRITER.entries, 0), 1e9)
    signed(follower, now=1e9)
    assert height(follower) == len(WRITER.entries)


def test_a_signed_head_undoes_a_strangers_fork(store: LedgerStore) -> None:
    follower, liar = started(store), fork()
    half = LedgerWriter()
    for envelope in WRITER.envelopes[:5]:
        half.append(envelope)
    follower.receive(control.EnvelopeArrived(half.signed_head()), 0.0)
    follower.receive(page(liar.entries, 0), 0.0)
    assert (height(follower), store.height, follower.snapshot().signed_height) == (5, 15, 5)
    signed(follower, 9, 1.0)
    assert store.height == 5  # back to what the learner signed
    follower.receive(page(WRITER.entries, 5), 2.0)
    assert (height(follower), follower.snapshot().signed_height) == (9, 9)
    assert follower.snapshot().incident is None
    assert store.entries(0, 999) == WRITER.entries


def test_a_known_head_stops_a_fork(store: LedgerStore) -> None:
    follower, liar = started(store), fork()
    follower.receive(control.EnvelopeArrived(WRITER.signed_head(height=9, head=_head_at(9))), 0.0)
    follower.receive(page(liar.entries, 0), 0.0)
    assert height(follower) == 0
    assert store.height == 0
    follower.receive(page(WRITER.entries, 0), 0.0)
    assert follower.snapshot().signed_height == 9


def test_two_heads_of_one_height_are_a_lasting_incident(store: LedgerStore) -> None:
    follower = started(store)
    follower.receive(page(WRITER.entries, 0), 0.0)
    follower.receive(control.EnvelopeArrived(WRITER.signed_head()), 0.0)
    assert follower.snapshot().incident is None
    follower.receive(control.EnvelopeArrived(WRITER.signed_head(head=bytes(32))), 0.0)
    incident = follower.snapshot().incident
    assert incident is not None
    assert "two different histories" in incident
    assert LedgerFollower(store, run=WRITER.run).snapshot().incident == incident


def test_a_lower_head_against_a_confirmed_chain_is_an_incident(store: LedgerStore) -> None:
    follower = started(store)
    follower.receive(page(WRITER.entries, 0), 0.0)
    follower.receive(control.EnvelopeArrived(WRITER.signed_head()), 0.0)
    follower.receive(control.EnvelopeArrived(WRITER.signed_head(height=4, head=bytes(32))), 0.0)
    assert "contradicts" in (follower.snapshot().incident or "")
    assert height(follower) == len(WRITER.entries)


def test_a_head_not_signed_by_the_learner_is_refused(store: LedgerStore) -> None:
    follower = started(store)
    follower.receive(page(WRITER.entries, 0), 0.0)
    signed(follower)
    other = LedgerWriter()
    other.learner = identity("eve")
    with pytest.raises(RemoteProtocolError, match="head"):
        follower.receive(control.EnvelopeArrived(other.signed_head(height=4)), 0.0)
    assert height(follower) == len(WRITER.entries)


def test_the_final_head_ends_the_run(store: LedgerStore) -> None:
    follower = started(store)
    now = WRITER.now
    follower.receive(page(WRITER.entries, 0), now)
    follower.receive(signals.VersionAnnounced(1, 0), now)
    follower.receive(control.EnvelopeArrived(WRITER.signed_head()), now)
    assert not follower.snapshot().finished
    last = LedgerHead(len(WRITER.entries), WRITER.head, 0, True)
    final_head = seal(WRITER.learner, last, run=WRITER.run, now=now + 1)
    follower.receive(control.EnvelopeArrived(final_head), now + 2)
    assert follower.snapshot().finished
    resumed = LedgerFollower(store, run=WRITER.run)
    assert signals.Publish(final_head) in resumed.introduce(), "this board may be the last peer that has it"


def test_a_learner_unheard_of_for_a_minute_is_offline(store: LedgerStore) -> None:
    def offline_at(now: float) -> float | None:
        follower.handle_timer(now)
        return follower.snapshot().learner_offline_since

    def link(*peers: tuple[str, int], now: float) -> None:
        follower.receive(control.Status(peers, 0, 0, 0, 0, (-1, 0, 0), 0, 0), now)

    started(store)
    signed = WRITER.now
    follower = LedgerFollower(store, run=WRITER.run)  # started long after the learner's last head
    begin = signed + 5_000
    follower.receive(control.EnvelopeArrived(WRITER.signed_head()), begin)
    assert offline_at(begin + 60) is None, "a board that has just started cannot know"
    assert offline_at(begin + 61) == pytest.approx(signed, abs=0.001)
    link(("learner", 1), now=begin + 70)
    link(("volunteer", 2), now=begin + 80)
    assert offline_at(begin + 130) is None
    assert offline_at(begin + 131) == begin + 70
    later = LedgerWriter(now=begin + 140)
    head = seal(later.learner, LedgerHead(1, _head_at(1), 0, False), run=WRITER.run, now=begin + 140)
    follower.receive(control.EnvelopeArrived(head), begin + 141)
    assert offline_at(begin + 199) is None
    assert offline_at(begin + 201) == pytest.approx(begin + 140, abs=0.001)


def test_an_old_final_head_does_not_end_the_run(store: LedgerStore) -> None:
    follower = started(store)
    follower.receive(page(WRITER.entries, 0), WRITER.now)
    follower.receive(control.EnvelopeArrived(WRITER.signed_head(finished=True, height=1, head=_head_at(1))), WRITER.now)
    follower.receive(signals.VersionAnnounced(9, 1_000), WRITER.now)
    follower.handle_timer(WRITER.now + 3_600)
    assert not follower.snapshot().finished
    assert not any(isinstance(message, signals.Publish) for message in follower.introduce())


def test_another_runs_manifest_is_refused(store: LedgerStore) -> None:
    other = LedgerWriter(now=1.0)
    with pytest.raises(RemoteProtocolError, match="join link"):
        LedgerFollower(store, run=WRITER.run).receive(control.RunKnown(other.manifest_raw), 0.0)
    assert store.manifest == b""


def test_resumes_from_disk_after_a_crash(tmp_path: Path, store: LedgerStore) -> None:
    follower = started(store)
    follower.receive(page(WRITER.entries, 0, 7), 0.0)
    follower.receive(control.EnvelopeArrived(WRITER.signed_head(height=6, head=_head_at(6))), 0.0)
    again = LedgerStore(tmp_path / "board" / "ledger_chain.db", run=WRITER.run)  # the first one was never closed
    resumed = LedgerFollower(again, run=WRITER.run)
    assert height(resumed) == 6
    assert resumed.snapshot().signed_height == 6
    assert resumed.introduce() == [signals.SetLedgerHeight(6)]
    assert resumed.handle_timer(9.0) == [signals.AskLedger(7)]
    again.close()


def test_an_edited_file_is_truncated_to_its_valid_prefix(tmp_path: Path, store: LedgerStore) -> None:
    follower = started(store)
    follower.receive(page(WRITER.entries, 0), 0.0)
    signed(follower, 3)
    signed(follower)
    db = sqlite3.connect(tmp_path / "board" / "ledger_chain.db", isolation_level=None)
    db.execute("UPDATE ledger SET raw = x'00' WHERE height = 4")
    db.close()
    resumed = LedgerFollower(store, run=WRITER.run)
    assert (height(resumed), store.height) == (3, 4)
    resumed.receive(page(WRITER.entries, 4), 0.0)
    assert height(resumed) == len(WRITER.entries)
    assert store.entries(0, 999) == WRITER.entries


def test_a_fork_on_disk_is_cut_back_by_the_heads_on_disk(store: LedgerStore) -> None:
    follower = started(store)
    follower.receive(page(WRITER.entries, 0), 0.0)
    follower.receive(control.EnvelopeArrived(WRITER.signed_head(height=4, head=_head_at(4))), 0.0)
    follower.receive(control.EnvelopeArrived(WRITER.signed_head(height=9, head=_head_at(9))), 0.0)
    store.truncate(0)
    store.append(0, fork().entries)
    resumed = LedgerFollower(store, run=WRITER.run)
    assert (height(resumed), store.height) == (4, 4)


def test_a_folder_serves_one_run(tmp_path: Path, store: LedgerStore) -> None:
    started(store)
    with pytest.raises(ConfigError, match="another run"):
        LedgerStore(tmp_path / "board" / "ledger_chain.db", run=bytes(32))


def test_stored_heads_are_bounded(store: LedgerStore) -> None:
    for number in range(1, 200):
        store.keep_head(number, str(number).encode())
    heads = store.heads()
    assert len(heads) <= 64
    assert heads[-1] == b"199"


def _head_at(entries: int) -> bytes:
    return ledger_chain.entry_digest(WRITER.entries[entries - 1])


def test_a_head_of_no_entries_is_refused(store: LedgerStore) -> None:
    follower = started(store)
    with pytest.raises(RemoteProtocolError):
        follower.receive(control.EnvelopeArrived(WRITER.signed_head(height=0)), 0.0)
    assert follower.snapshot().signed_height is None


def test_the_page_names_the_learner_and_the_listed_peers_that_are_linked(store: LedgerStore) -> None:
    """The link that a board was started with may name volunteers of a release that asked nobody."""

    def place(who: str, address: str) -> str:
        return f"/ip4/{address}/tcp/4001/p2p/{identity(who).peer_id}"

    learner, seeder, home, new = (
        place(who, f"8.8.8.{number}") for number, who in enumerate(("learner", "seeder", "home", "new"))
    )
    circuit = f"{home}/p2p-circuit/p2p/{identity('learner').peer_id}"
    link = JoinLink("run", WRITER.run, (learner, circuit, seeder, home))
    follower = LedgerFollower(store, run=WRITER.run, join_link=link)
    assert follower.snapshot().join_link == "", "who the learner is stands in the manifest"
    follower.receive(control.RunKnown(WRITER.manifest_raw), 0.0)
    for linked, shown in (((), (learner,)), ((seeder,), (learner, seeder)), ((new,), (learner, new)), ((), (learner,))):
        follower.receive(control.Status((), 0, 0, 0, 0, (-1, 0, 0), 0, 0, link_peers=linked), 1.0)
        assert parse_link(follower.snapshot().join_link).bootstrap == shown
    only = LedgerFollower(store, run=WRITER.run, join_link=JoinLink("run", WRITER.run, (home,)))
    assert only.snapshot().join_link == ""
    assert LedgerFollower(store, run=WRITER.run).snapshot().join_link == "", "a mirror has no page"


def test_the_page_names_no_private_address_of_a_peer_in_a_link_of_the_internet(store: LedgerStore) -> None:
    """The learner's own stay; the link may be of a day on which others were named at home."""
    own, home, public = (
        f"/ip4/{host}/tcp/4001/p2p/{identity(who).peer_id}"
        for host, who in (("192.168.1.5", "learner"), ("192.168.1.9", "seeder"), ("8.8.8.8", "learner"))
    )
    for given, shown in (((own, home), (own, home)), ((own, public, home), (own, public))):
        link = JoinLink("run", WRITER.run, given)
        follower = LedgerFollower(store, run=WRITER.run, join_link=link)
        follower.receive(control.RunKnown(WRITER.manifest_raw), 0.0)
        follower.receive(control.Status((), 0, 0, 0, 0, (-1, 0, 0), 0, 0, link_peers=(home,)), 1.0)
        assert parse_link(follower.snapshot().join_link).bootstrap == shown
