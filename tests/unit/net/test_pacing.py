"""The pacer and the upload budget: order, rates, and the file that survives a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from p2prl.net.pacing import Pacer
from p2prl.net.process.upload_budget import UploadBudget
from p2prl.protocol.identity import PeerId

NOVEMBER = 1_795_262_400.0


class LoopClock:
    """The event loop's clock, offset to a date; optionally stopped until `start`."""

    def __init__(self, *, started: bool = True) -> None:
        self._start: float | None = None
        if started:
            self.start()

    def start(self) -> None:
        self._start = asyncio.get_running_loop().time()

    def now(self) -> float:
        return NOVEMBER if self._start is None else NOVEMBER + asyncio.get_running_loop().time() - self._start


class JumpingLoop(asyncio.SelectorEventLoop):
    """Nothing here waits for anything but timers, so time jumps to the next one: no other load changes an order."""

    _now = 0.0
    _ready: Sequence[asyncio.Handle]
    _scheduled: Sequence[asyncio.TimerHandle]

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        due = [timer.when() for timer in self._scheduled if not timer.cancelled()]
        if due and not self._ready:
            self._now = max(self._now, min(due))
        super()._run_once()  # type: ignore[misc]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(bounded())


def test_the_oldest_frame_leaves_first_and_an_idle_frame_delays_none() -> None:
    async def scenario() -> None:
        clock = LoopClock(started=False)
        pacer = Pacer(clock, 1_000_000.0)
        left: list[str] = []

        async def send(name: str, ticket: int, slices: int) -> None:
            for _ in range(slices):
                await pacer.turn(ticket, 16_384)
                left.append(name)

        first, stalled, second = pacer.ticket(), pacer.ticket(), pacer.ticket()
        assert stalled > first
        pacer.charge(40_000)  # so that both have to wait
        sending = [asyncio.ensure_future(send("second", second, 3)), asyncio.ensure_future(send("first", first, 3))]
        await asyncio.sleep(0)
        clock.start()
        await asyncio.gather(*sending)
        assert left == ["first"] * 3 + ["second"] * 3

    run(scenario)


def test_chunks_and_control_messages_share_the_rate() -> None:
    async def scenario() -> None:
        clock = LoopClock()
        pacer, began = Pacer(clock, 1_000_000.0), clock.now()
        for number in range(20):
            if number % 4 == 0:
                pacer.charge(20_000)
            await pacer.turn(pacer.ticket(), 20_000)
        # 500 kB at 1 MB/s, less one burst and the last frame, which is paid for after it left.
        assert clock.now() - began >= 0.5 - 0.05 - 0.02 - 0.01

    run(scenario)


def test_a_cancelled_turn_is_skipped() -> None:
    async def scenario() -> None:
        pacer = Pacer(LoopClock(), 1_000_000.0)
        pacer.charge(60_000)
        given_up = asyncio.ensure_future(pacer.turn(pacer.ticket(), 10**9))
        await asyncio.sleep(0)
        given_up.cancel()
        await pacer.turn(pacer.ticket(), 10)

    run(scenario)


def test_the_months_bytes_survive_a_restart_and_a_damaged_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "seat" / "uploads.json"
        first = UploadBudget(LoopClock(), cap_bytes_s=1e6, monthly_bytes=1_000, path=path)
        first.chunk_leaves(600)
        assert not first.is_spent()
        first.save()
        again = UploadBudget(LoopClock(), cap_bytes_s=1e6, monthly_bytes=1_000, path=path)
        again.chunk_leaves(400)
        assert again.is_spent()
        again.save()
        assert json.loads(path.read_text()) == {"month": "2026-11", "uploaded_bytes": 1_000}
        for damage in ("", "[]", '{"month": 3, "uploaded_bytes": 1}', '{"month": "2026-11"}', "\x00"):
            path.write_text(damage)
            assert UploadBudget(LoopClock(), cap_bytes_s=0, monthly_bytes=10, path=path).spent_bytes == 0

    run(scenario)


def test_caps_change_while_it_runs_and_the_month_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        budget = UploadBudget(LoopClock(), cap_bytes_s=1e6, monthly_bytes=0, path=tmp_path / "uploads.json")
        budget.chunk_leaves(600)
        assert not budget.is_spent()
        budget.set_caps(cap_bytes_s=5e5, monthly_bytes=600)
        assert budget.pacer.rate_bytes_s == budget.rate_bytes_s == 5e5
        assert budget.is_spent()
        budget.set_caps(cap_bytes_s=0.0, monthly_bytes=601)
        assert budget.pacer.rate_bytes_s == 0.0
        assert not budget.is_spent()

    run(scenario)


def test_without_a_cap_the_uplink_is_measured_and_80_percent_used(tmp_path: Path) -> None:
    class Clock:
        time = NOVEMBER

        def now(self) -> float:
            return self.time

    async def scenario() -> None:
        clock = Clock()
        budget = UploadBudget(clock, cap_bytes_s=0.0, monthly_bytes=0, path=tmp_path / "uploads.json")
        assert budget.rate_bytes_s == budget.pacer.rate_bytes_s == 0.0
        changed = False
        for number in range(12):
            budget.chunk_leaves(1_000_000)
            clock.time += 0.5
            changed |= budget.chunk_done(PeerId(str(number % 3)), 1_000_000)
        assert changed
        assert abs(budget.rate_bytes_s - 1.6e6) < 1.0
        assert budget.pacer.rate_bytes_s == budget.rate_bytes_s
        clock.time += 3_600
        budget.chunk_leaves(1_000_000)
        assert budget.pacer.rate_bytes_s == 0.0, "measured again"

    run(scenario)


def test_a_month_to_come_in_the_file_is_this_month(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "uploads.json"
        path.write_text('{"month": "2031-01", "uploaded_bytes": 1000}')
        budget = UploadBudget(LoopClock(), cap_bytes_s=1e6, monthly_bytes=1_000, path=path)
        assert budget.is_spent(), "its bytes count"
        budget.save()
        assert json.loads(path.read_text())["month"] == "2026-11"

    run(scenario)
