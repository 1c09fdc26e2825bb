"""Seeder: its reports, and the conditions under which it leaves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest

from p2prl.client.progress import NO_STATUS
from p2prl.client.seeder import Seeder, Seeding
from p2prl.controls.rules import Order
from p2prl.errors import UnreachableError
from p2prl.net.process import control
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm import signals

NOW = 1_800_000_000.0
LEARNER = identity_of("learner")
MANIFEST = seal(LEARNER, run_manifest_of(LEARNER), run=bytes(32), now=NOW)
STATUS = control.Status((("learner", 1),), 100, 300, 700, 0, (-1, 0, 0), 50, 20, upload_bytes_s=250_000.0)


class Clock:
    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> float:
        return self.time


class Script:
    """A network port that returns scripted messages, one batch per poll; each poll takes five seconds."""

    addresses: tuple[str, ...] = ()
    status: control.Status | None = None

    def __init__(self, clock: Clock, *batches: list[control.FromNetwork]) -> None:
        self._clock = clock
        self._batches = list(batches)
        self.closed = False
        self.told: list[control.ToNetwork] = []

    def send(self, message: control.ToNetwork) -> None:
        self.told.append(message)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        self._clock.time += 5.0
        return self._batches.pop(0) if self._batches else []

    def wake(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def seeder(clock: Clock, seen: list[Seeding]) -> Seeder:
    return Seeder(clock=clock, on_manifest=lambda *_: 5_000, on_progress=seen.append, on_notice=lambda _: None)


def test_reports_traffic_and_leaves_when_the_run_ends() -> None:
    clock, seen = Clock(), list[Seeding]()
    farewell = seal(LEARNER, LedgerHead(9, bytes(32), 40, True), run=envelope_digest(MANIFEST), now=NOW)
    fetching = msgspec.structs.replace(STATUS, fetching=(3, 5, 64))
    script = Script(
        clock,
        [],
        [control.RunKnown(MANIFEST), STATUS],
        [signals.VersionAnnounced(3, 30), fetching],
        [STATUS],
        [control.EnvelopeArrived(farewell)],
    )
    assert seeder(clock, seen).run(script) is True
    assert script.closed
    assert script.told == [signals.RunAccepted(5_000)], "and nothing else"
    assert [view.state for view in seen] == ["looking for the run", "seeding", "fetching", "seeding", "seeding"]
    assert (seen[2].version, seen[2].chunks_held, seen[2].chunks) == (3, 5, 64)
    assert (seen[3].received_bytes, seen[3].received_from_learner_bytes, seen[3].sent_bytes) == (400, 100, 700)


def test_reports_a_reached_monthly_limit() -> None:
    clock, seen = Clock(), list[Seeding]()
    made = seeder(clock, seen)
    spent = msgspec.structs.replace(STATUS, budget_spent=True)

    def stop_then(view: Seeding) -> None:
        seen.append(view)
        made.stop()

    made._on_progress = stop_then
    assert made.run(Script(clock, [control.RunKnown(MANIFEST), spent])) is False
    assert seen[-1].state == "paused: the monthly upload limit is reached"


def test_an_unknown_run_fails_after_a_minute() -> None:
    clock = Clock()
    script = Script(clock)
    script.status = NO_STATUS
    with pytest.raises(UnreachableError):
        seeder(clock, []).run(script)
    assert script.closed


def test_a_seeder_that_waits_says_where_it_is_and_stays_until_the_run_comes() -> None:
    clock, seen, said = Clock(), list[Seeding](), list[tuple[str, ...]]()
    made = Seeder(
        clock=clock,
        on_manifest=lambda *_: 5_000,
        on_progress=seen.append,
        on_notice=lambda _: None,
        on_waiting=said.append,
    )
    batches: list[list[control.FromNetwork]] = [[] for _ in range(500)]
    addresses = ("/ip4/9.9.9.9/tcp/4001/p2p/x", "/ip4/127.0.0.1/tcp/4001/p2p/x")
    batches[0] = [control.NetworkUp(addresses)]
    batches[400] = [control.RunKnown(MANIFEST), STATUS]
    script = LeavingScript(clock, *batches)
    script.status = NO_STATUS
    script.at = {450: made.stop}
    assert made.run(script) is False
    assert said == [addresses], "once"
    assert seen[10].state == "waiting for the run's learner"
    assert seen[-1].state == "seeding"


class LeavingScript(Script):
    """A scripted network that can be left; `at` gives an owner's orders before the poll of that number."""

    def __init__(self, clock: Clock, *batches: list[control.FromNetwork]) -> None:
        super().__init__(clock, *batches)
        self.at: dict[int, Callable[[], None]] = {}
        self.polls = 0
        self.calls: list[tuple[int, str]] = []

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        self.polls += 1
        self.at.get(self.polls, lambda: None)()
        return super().poll(timeout_s)

    def suspend(self) -> None:
        self.calls.append((self.polls, "suspend"))

    def resume(self) -> None:
        self.calls.append((self.polls, "resume"))


def test_a_pause_leaves_the_network_and_says_so() -> None:
    clock, seen = Clock(), list[Seeding]()
    script = LeavingScript(clock, [control.RunKnown(MANIFEST), STATUS])
    made = seeder(clock, seen)
    paused = Order(rests=True, reason="paused by you", keeps_network=False)
    script.at = {2: lambda: made.owner.give(paused), 4: lambda: made.owner.give(Order()), 6: made.stop}
    assert made.run(script) is False
    assert script.calls == [(2, "suspend"), (4, "resume")]
    assert [view.state for view in seen] == [
        "seeding",
        "seeding",
        "paused by you",
        "joining the network again",
        "seeding",
        "seeding",
    ]


def test_a_seeder_paused_before_it_found_the_run_waits_as_long_as_its_owner_likes() -> None:
    clock = Clock()
    script = LeavingScript(clock)
    made = seeder(clock, [])
    made.owner.give(Order(rests=True, reason="paused by you", keeps_network=False))
    script.at = {90: made.stop}
    assert made.run(script) is False


def test_a_pause_that_keeps_relaying_changes_nothing_for_a_seeder() -> None:
    clock, seen = Clock(), list[Seeding]()
    script = LeavingScript(clock, [control.RunKnown(MANIFEST), STATUS])
    made = seeder(clock, seen)
    made.owner.give(Order(rests=True, reason="paused by you", keeps_network=True))
    script.at = {3: made.stop}
    made.run(script)
    assert not script.calls
    assert {view.state for view in seen} == {"seeding"}


def test_neither_process_imports_torch() -> None:
    probe = (
        "import sys, p2prl.cli.commands.seed_worker, p2prl.net.process.network_process\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)
