"""The run as a volunteer sees it: a curve, machines and the next version, bounded and counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.cli.views.volunteer_view import run_document
from p2prl.cli.views.worker_screen import badge_of
from p2prl.client.progress import SEARCHING, Progress, ProgressReporter
from p2prl.client.run_watch import MOST_MACHINES, MOST_POINTS, RunWatch
from p2prl.client.spool import Spool, SpoolConfig
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState

OWN, OTHER, THIRD = (bytes([n]) * 32 for n in (1, 2, 3))


def receipts(step: int, *groups: tuple[bytes, int, float], state: ReceiptState = ReceiptState.VERIFIED) -> Receipts:
    """Groups of (peer, tokens, mean reward), eight completions each."""
    return Receipts(
        step,
        tuple(Receipt(bytes(32), peer, 0, 0, int(state), "", tokens, 8, reward) for peer, tokens, reward in groups),
    )


def test_nothing_is_claimed_before_anything_was_heard() -> None:
    view = RunWatch(OWN).view(100.0, publish_every=2)
    assert (view.step, view.curve, view.machines, view.since) == (-1, (), 0, None)
    assert (view.next_share, view.next_s, view.cut_off_since) == (None, None, None)


def test_machines_are_those_with_a_judged_group_since_the_first_receipts() -> None:
    watch = RunWatch(OWN)
    watch.on_receipts(receipts(3, (OWN, 10, 0.5), (OTHER, 11, 0.5)), b"a", 50.0)
    assert (watch.view(60.0, publish_every=0).machines, watch.view(60.0, publish_every=0).since) == (2, 50.0)
    watch.on_receipts(receipts(4, (OWN, 1, 0.5)), b"b", 55.0)
    watch.on_receipts(receipts(5, (THIRD, 90, 0.5), state=ReceiptState.REJECTED), b"c", 56.0)
    view = watch.view(60.0, publish_every=0)
    assert (view.machines, view.since) == (3, 50.0)


def test_a_rank_is_the_boards_alone() -> None:
    """Two machines that joined at different times both called themselves the first of two."""
    watch = RunWatch(OWN)
    watch.on_receipts(receipts(3, (OWN, 10, 0.5), (OTHER, 5, 0.5)), b"a", 50.0)
    assert run_document(watch.view(60.0, publish_every=0))["rank"] is None


def test_receipts_that_come_again_count_once() -> None:
    watch = RunWatch(OWN)
    for _ in range(2):
        watch.on_receipts(receipts(3, (OWN, 10, 0.0)), b"a", 50.0)
    watch.on_receipts(receipts(3, (OTHER, 15, 1.0)), b"b", 50.0)
    assert watch.view(60.0, publish_every=0).curve == ((3, 0.5),)


def test_the_newest_thousand_batches_are_known_and_memory_holds_no_more() -> None:
    watch = RunWatch(OWN)

    def hear(numbers: range) -> None:
        for number in numbers:
            watch.on_receipts(receipts(0, (OWN, 1, number / 4096)), number.to_bytes(4, "big"), 1.0)

    hear(range(1024))
    curve = watch.view(2.0, publish_every=0).curve
    hear(range(1024))
    assert watch.view(2.0, publish_every=0).curve == curve, "a network that comes back repeats them"
    hear(range(1024, 2048))
    curve = watch.view(2.0, publish_every=0).curve
    hear(range(1024, 2048))
    assert watch.view(2.0, publish_every=0).curve == curve
    hear(range(1))
    assert watch.view(2.0, publish_every=0).curve != curve, "the oldest are forgotten"


def test_the_curve_is_the_mean_of_credited_completions() -> None:
    watch = RunWatch(OWN)
    watch.on_receipts(receipts(3, (OWN, 1, 0.25), (OTHER, 1, 0.75)), b"a", 50.0)
    watch.on_receipts(receipts(4, (OWN, 1, 1.0)), b"b", 51.0)
    watch.on_receipts(receipts(5, (OWN, 1, 0.0), state=ReceiptState.REJECTED), b"c", 52.0)
    view = watch.view(60.0, publish_every=0)
    assert (view.curve, view.step) == (((3, 0.5), (4, 1.0)), 5)


def test_a_long_run_fits_on_the_curve() -> None:
    watch = RunWatch(OWN)
    for step in range(4 * MOST_POINTS):
        watch.on_receipts(receipts(step, (OWN, 1, float(step))), step.to_bytes(4, "big"), float(step))
    curve = watch.view(0.0, publish_every=0).curve
    assert len(curve) <= MOST_POINTS
    assert curve[0] == (0, 1.5), "four steps became one point"
    assert [step for step, _ in curve] == sorted(step for step, _ in curve)


def test_the_number_of_machines_is_bounded_and_this_one_always_counts() -> None:
    watch = RunWatch(OWN)
    crowd = [(n.to_bytes(32, "big"), 1, 0.5) for n in range(1, MOST_MACHINES + 50)]
    watch.on_receipts(receipts(1, *crowd), b"a", 1.0)
    assert watch.view(2.0, publish_every=0).machines == MOST_MACHINES
    watch.on_receipts(receipts(1, (OWN, 5, 0.5)), b"b", 1.0)
    assert watch.view(2.0, publish_every=0).machines == MOST_MACHINES + 1


def test_the_next_version_comes_at_the_pace_of_the_last_updates() -> None:
    watch = RunWatch(OWN)
    watch.on_version(10, 100.0)
    view = watch.view(100.0, publish_every=4)
    assert (view.next_share, view.next_s) == (0.0, None)
    watch.on_receipts(receipts(11, (OWN, 1, 0.5)), b"a", 110.0)
    watch.on_receipts(receipts(12, (OWN, 1, 0.5)), b"b", 120.0)
    view = watch.view(123.0, publish_every=4)
    assert view.next_share == 0.5
    assert view.next_s == pytest.approx(17.0)
    assert watch.view(900.0, publish_every=4).next_s == 0.0
    watch.on_receipts(receipts(20, (OWN, 1, 0.5)), b"c", 121.0)
    assert watch.view(123.0, publish_every=4).next_share == 1.0
    watch.on_version(20, 122.0)
    assert watch.view(123.0, publish_every=4).next_share == 0.0


def test_being_cut_off_begins_with_the_last_link() -> None:
    watch = RunWatch(OWN)
    watch.on_links({}, 1.0)
    assert watch.view(2.0, publish_every=0).cut_off_since is None, "nobody was met yet"
    watch.on_links({"learner": 1}, 3.0)
    watch.on_links({"learner": 0}, 4.0)
    watch.on_links({}, 5.0)
    assert watch.view(6.0, publish_every=0).cut_off_since == 4.0
    watch.on_links({"volunteer": 1}, 7.0)
    assert watch.view(8.0, publish_every=0).cut_off_since is None


def test_after_a_rest_a_worker_without_links_is_looking_for_them_and_not_cut_off(tmp_path: Path) -> None:
    reports: list[Progress] = []
    spool = Spool(tmp_path / "spool.db", SpoolConfig())
    progress = ProgressReporter(spool, reports.append, bytes(32))
    for at, peers, resting in (
        (0.0, (("learner", 1),), False),
        (10.0, (), True),
        (20.0, (), False),
        (79.0, (), False),
        (81.0, (), False),
        (90.0, (("learner", 1),), False),
    ):
        progress.link(peers, at)
        progress.report(at, state="sampling", version=0, status=None, resting=resting)
    assert [each.state == SEARCHING for each in reports] == [False, False, True, True, False, False]
    assert badge_of({"state": SEARCHING, "peers": {}}) == ("starting", "yellow")
    spool.close()
