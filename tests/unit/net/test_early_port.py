"""A run met early: its manifest is read at once, and the role still gets every message, in order and once."""

from __future__ import annotations

from p2prl.net.process import control
from p2prl.net.process.early_port import EarlyPort

WARNED, KNOWN, LATER = control.Warned("slow", ""), control.RunKnown(b"manifest"), control.Warned("later", "")


class Scripted:
    """A network that gives these batches, then nothing."""

    addresses: tuple[str, ...] = ()
    status = None

    def __init__(self, *batches: list[control.FromNetwork]) -> None:
        self.batches = list(batches)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        return self.batches.pop(0) if self.batches else []

    def send(self, message: control.ToNetwork) -> None:
        raise AssertionError(message)

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_what_came_before_the_role_is_told_again() -> None:
    port = EarlyPort(Scripted([WARNED], [], [WARNED, KNOWN, LATER], [LATER]))
    assert port.await_run(lambda: False) == b"manifest"
    assert [port.poll(0.0) for _ in range(3)] == [[WARNED, WARNED, KNOWN, LATER], [LATER], []]


def test_a_run_that_does_not_come_in_time_comes_to_the_role() -> None:
    turns = iter([False, False, True])
    port = EarlyPort(Scripted([WARNED], [], [KNOWN]))
    assert port.await_run(lambda: next(turns)) is None
    assert [port.poll(0.0) for _ in range(3)] == [[WARNED], [KNOWN], []]
