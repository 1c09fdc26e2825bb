"""Energy: counters added up over wraparounds and gaps, by hand-made readings, and never where nothing is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.controls.energy import (
    CARD,
    MEMORY,
    MOST_GAP_S,
    PROCESSOR,
    EnergyAccount,
    EnergyCounter,
    EnergyMeter,
    EnergyUse,
)
from p2prl.controls.owner_values import Price
from p2prl.controls.rapl_sensor import RaplSensor

FREE = Price()


def package(joules: float) -> EnergyCounter:
    return EnergyCounter("intel-rapl:0", PROCESSOR, joules, 262_144.0)


def metered(*readings: tuple[float, float, bool]) -> EnergyUse:
    """Times, joules of the package, and whether the worker worked before."""
    meter = EnergyMeter()
    for now, joules, worked in readings:
        meter.note(now, [package(joules)], None, worked=worked)
    return meter.use


def test_a_steady_load_is_its_watts_times_its_seconds() -> None:
    use = metered(*((second, 1_000.0 + 40.0 * second, True) for second in range(3_601)))
    assert use.joules == pytest.approx(40.0 * 3_600)
    assert use.watts == pytest.approx(40.0)
    assert use.parts == (PROCESSOR,)


def test_a_counter_that_begins_anew() -> None:
    use = metered((0.0, 262_100.0, True), (1.0, 262_140.0, True), (2.0, 36.0, True), (3.0, 76.0, True))
    assert use.joules == pytest.approx(120.0)
    assert use.watts == pytest.approx(40.0)


def test_a_counter_that_was_set_back_or_slept_is_left_out() -> None:
    set_back = metered((0.0, 100_000.0, True), (1.0, 100_040.0, True), (2.0, 5.0, True), (3.0, 45.0, True))
    assert set_back.joules == pytest.approx(80.0)
    slept = metered((0.0, 0.0, True), (1.0, 40.0, True), (2.0 + MOST_GAP_S, 5_000.0, True))
    assert slept.joules == pytest.approx(40.0)
    assert slept.watts is None


def test_only_work_counts_and_watts_are_told_at_rest_too() -> None:
    use = metered((0.0, 0.0, True), (1.0, 40.0, True), (2.0, 50.0, False), (3.0, 60.0, False), (4.0, 100.0, True))
    assert use.joules == pytest.approx(80.0)
    assert use.watts == pytest.approx(100.0 / 4)


def test_a_card_by_its_counter_or_else_by_its_watts() -> None:
    by_watts, by_counter = EnergyMeter(), EnergyMeter()
    for second in range(11):
        by_watts.note(second, [package(30.0 * second)], 200.0, worked=True)
        counters = [package(30.0 * second), EnergyCounter(CARD, CARD, 7e6 + 210.0 * second)]
        by_counter.note(second, counters, 200.0, worked=True)
    for meter, watts in ((by_watts, 230.0), (by_counter, 240.0)):
        assert meter.use.joules == pytest.approx(10.0 * watts)
        assert meter.use.watts == pytest.approx(watts)
        assert meter.use.parts == (CARD, PROCESSOR)


def test_nothing_measured_is_nothing_said() -> None:
    meter = EnergyMeter()
    for second in range(5):
        meter.note(second, [], None, worked=True)
    assert meter.use == EnergyUse()
    assert EnergyAccount().document(meter.use, 5_000, Price(0.3)) is None


def test_an_account_of_a_session_and_of_those_before() -> None:
    account = EnergyAccount()
    half = EnergyUse(joules=1.8e6, watts=100.0, parts=(PROCESSOR,))
    assert account.document(EnergyUse(0.0, 90.0, (PROCESSOR,)), 10_000, FREE) == {
        "of": ["processor"], "watts": 90.0, "kwh": 0.0, "tokens": 0, "tokens_per_kwh": None,
        "total_kwh": 0.0, "total_tokens": 0,
    }  # fmt: skip
    first = account.document(half, 60_000, Price(0.3, "EUR"))
    assert first is not None
    assert (first["kwh"], first["tokens"], first["tokens_per_kwh"]) == (0.5, 50_000, 100_000)
    assert (first["cost"], first["currency"]) == (0.15, "EUR")
    later = EnergyAccount.going_on(first)
    later.document(EnergyUse(), 60_000, FREE)
    second = later.document(half, 90_000, FREE)
    assert second is not None
    assert (second["kwh"], second["tokens"], second["total_kwh"], second["total_tokens"]) == (0.5, 30_000, 1.0, 80_000)
    assert "cost" not in second
    unmeasured = EnergyAccount.going_on(second).document(EnergyUse(), 99_000, FREE)
    assert unmeasured is not None
    assert (unmeasured["of"], unmeasured["total_kwh"], unmeasured["total_tokens"]) == ([], 1.0, 80_000)


@pytest.mark.parametrize(
    "left", [None, [], {"total_kwh": "1"}, {"total_kwh": -1.0, "total_tokens": 1}, {"total_kwh": 1}]
)
def test_a_damaged_account_begins_anew(left: object) -> None:
    assert EnergyAccount.going_on(left) == EnergyAccount()


def zone(folder: Path, place: str, name: str, microjoules: int, span: int = 262_143_328_850) -> Path:
    made = folder / place
    made.mkdir(parents=True)
    (made / "name").write_text(f"{name}\n")
    (made / "energy_uj").write_text(f"{microjoules}\n")
    (made / "max_energy_range_uj").write_text(f"{span}\n")
    return made


def test_packages_and_memory_are_read_and_nothing_twice(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 3_000_000)
    zone(tmp_path, "intel-rapl:0:2", "dram", 2_000_000, span=65_712_999_613)
    zone(tmp_path, "intel-rapl:1", "package-1", 4_000_000)
    zone(tmp_path, "intel-rapl:2", "psys", 9_000_000)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 5_000_000)
    sensor = RaplSensor(tmp_path)
    assert sensor.missing == ""
    assert [(each.name, each.part, each.joules) for each in sensor.read()] == [
        ("intel-rapl:0", PROCESSOR, 5.0),
        ("intel-rapl:0:2", MEMORY, 2.0),
        ("intel-rapl:1", PROCESSOR, 4.0),
    ]
    spans = [each.range_joules for each in sensor.read()]
    assert spans == pytest.approx([262_143.32885, 65_712.999613, 262_143.32885])
    (tmp_path / "intel-rapl:1" / "energy_uj").unlink()
    assert [each.name for each in sensor.read()] == ["intel-rapl:0", "intel-rapl:0:2"]


def test_what_keeps_counters_from_being_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert RaplSensor(tmp_path).missing == (
        f"this system shows no energy counter of its processor ({tmp_path}/intel-rapl:0 is missing)"
    )
    denied = zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000) / "energy_uj"
    whole = Path.read_text

    def refused(path: Path) -> str:  # as the kernel refuses all but the superuser, which a test may be
        if path == denied:
            raise PermissionError
        return whole(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", refused)
        assert RaplSensor(tmp_path).missing == f"only root may read the processor's energy counter ({denied})"
    denied.write_text("none\n")
    assert RaplSensor(tmp_path).missing == f"the energy counters in {tmp_path} give no numbers"
