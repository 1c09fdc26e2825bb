"""A card through a stand-in for NVML: what the driver does not tell reads None, and a worker never yields to itself."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from p2prl.controls.nvidia_sensors import BUSY_PERCENT, NvmlCard, find_card


class FakeNvml:
    """NVML with one card; `fails` names the calls it has no answer to."""

    class NVMLError(Exception):
        value = 0

    def __init__(
        self, *, fails: tuple[str, ...] = (), pids: tuple[int, ...] = (), drawing: tuple[int, ...] = ()
    ) -> None:
        self._fails, self.pids, self._drawing = fails, pids, drawing
        self.shares: list[tuple[int, int, int]] = []
        """(pid, percent, age in µs) of the driver's samples."""

    def nvmlInit(self) -> None:  # noqa: N802 - the library's names
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        return int(self._answer("uuid", {"GPU-a": 7, "GPU-b": 8}[uuid]))

    def nvmlDeviceGetTotalEnergyConsumption(self, card: int) -> int:  # noqa: N802
        return int(self._answer("energy", 1_000_500 * card))

    def _answer(self, name: str, value: Any) -> Any:
        if name in self._fails:
            raise self.NVMLError
        return value

    def nvmlDeviceGetPowerUsage(self, card: int) -> int:  # noqa: N802
        return int(self._answer("power", 161_500))

    def nvmlDeviceGetTemperature(self, card: int, sensor: int) -> int:  # noqa: N802
        return int(self._answer("temperature", 68))

    def nvmlDeviceGetComputeRunningProcesses(self, card: int) -> Any:  # noqa: N802
        return self._answer("programs", [SimpleNamespace(pid=pid) for pid in self.pids])

    def nvmlSystemGetProcessName(self, pid: int) -> Any:  # noqa: N802
        return self._answer("name", b"/usr/bin/blender --render")

    def nvmlDeviceGetGraphicsRunningProcesses(self, card: int) -> Any:  # noqa: N802
        return self._answer("drawing", [SimpleNamespace(pid=pid) for pid in self._drawing])

    def nvmlDeviceGetProcessUtilization(self, card: int, since: int) -> Any:  # noqa: N802
        if not self.shares:
            error = self.NVMLError()
            error.value = 6
            raise error
        now = 1_800_000_000_000_000
        return self._answer(
            "shares",
            [SimpleNamespace(pid=pid, smUtil=share, timeStamp=now - age) for pid, share, age in self.shares],
        )


def test_a_card() -> None:
    card = NvmlCard(FakeNvml(pids=(os.getpid(), 7)), 1)
    assert (card.power_w(), card.temperature_c(), card.programs()) == (161.5, 68.0, ("blender",))


def test_a_card_without_some_sensors() -> None:
    card = NvmlCard(FakeNvml(fails=("power", "programs", "temperature", "name"), pids=(7,)), 0)
    assert (card.power_w(), card.temperature_c(), card.programs()) == (None, None, None)
    assert NvmlCard(FakeNvml(fails=("name",), pids=(os.getpid(), 7)), 0).programs() == ("another program",)
    assert find_card("cpu") is None


def test_a_library_that_is_missing_or_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert find_card("cuda") is None
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=lambda: 1 / 0))
    assert find_card("cuda:1") is None
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    assert find_card("cuda:1") is not None


def test_a_worker_in_a_container_does_not_give_way_to_itself() -> None:
    library = FakeNvml(pids=(70_001,))  # its own number, as the machine outside counts
    card = NvmlCard(library, 0, is_own=lambda pid: pid == 7)
    assert card.programs() is None
    library.pids = (7, 8)
    assert card.programs() == ("blender",)
    library.pids = (8,)
    assert card.programs() == ("blender",), "the numbers are this system's: it has been seen before"
    library.pids = ()
    assert card.programs() == ()


def test_processes_of_an_engine_are_its_workers_own() -> None:
    assert NvmlCard(FakeNvml(pids=(os.getpid(), os.getpid())), 0).programs() == ()
    assert NvmlCard(FakeNvml(pids=(os.getpid(), 1 << 30)), 0).programs() == ("blender",), "a process that has ended"


@pytest.mark.parametrize(
    ("shares", "games"),
    [
        ([], ()),
        ([(9, BUSY_PERCENT, 0)], ("blender",)),
        ([(9, BUSY_PERCENT - 1, 0)], ()),
        ([(5, 100, 0)], ()),  # computes, and draws nothing
        ([(5, 1, 0), (9, 100, 3_000_000)], ("blender",)),
        ([(5, 1, 0), (9, 100, 3_000_001)], ()),  # it has ended
    ],
)
def test_a_game_draws_and_takes_its_share_of_the_card(
    shares: list[tuple[int, int, int]], games: tuple[str, ...]
) -> None:
    library = FakeNvml(drawing=(9, 11))
    library.shares = shares
    assert NvmlCard(library, 0).games() == games


def test_games_where_the_driver_does_not_tell() -> None:
    assert NvmlCard(FakeNvml(fails=("drawing",)), 0).games() is None
    library = FakeNvml(fails=("shares",), drawing=(9,))
    library.shares = [(9, 100, 0)]
    assert NvmlCard(library, 0).games() is None
    assert NvmlCard(FakeNvml(), 0).games() == ()


def test_a_card_is_found_by_its_id_before_its_number() -> None:
    """CUDA and the driver count cards in orders of their own."""
    assert NvmlCard(FakeNvml(), 1, uuid="GPU-b").energy_j() == 8 * 1_000.5
    assert NvmlCard(FakeNvml(fails=("uuid",)), 1, uuid="GPU-b").energy_j() == 1_000.5
    assert NvmlCard(FakeNvml(fails=("energy",)), 1).energy_j() is None
