"""Memory for copies out of a card: pinned for as long as it lives. The driver is a stand-in, so no card is needed."""

from __future__ import annotations

import pytest
import torch

from p2prl.models.weights.host_memory import HostMemory

CARD = torch.device("cuda")


class Driver:
    """The part of CUDA's runtime that pins memory, with what it was asked."""

    def __init__(self, refusal: int = 0) -> None:
        self.refusal = refusal
        self.asked: list[tuple[int, int]] = []
        self.pinned: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        assert flags == 0
        self.asked.append((address, size))
        if not self.refusal:
            self.pinned[address] = size
        return self.refusal

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        del self.pinned[address]
        return 0


def driver(monkeypatch: pytest.MonkeyPatch, refusal: int = 0) -> Driver:
    made = Driver(refusal)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    return made


def address_of(data: bytearray) -> int:
    return torch.frombuffer(data, dtype=torch.uint8).data_ptr()


def test_memory_for_a_card_is_pinned_whole_and_for_as_long_as_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = driver(monkeypatch)
    memory = HostMemory(1000, CARD)
    kept = memory.data  # so that its address stays
    assert memory.is_pinned
    assert cuda.pinned == {address_of(kept): 1000}
    del memory
    assert cuda.pinned == {}
    assert kept == bytearray(1000)


def test_without_a_card_nothing_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = driver(monkeypatch)
    memory = HostMemory(1000, torch.device("cpu"))
    assert (memory.is_pinned, len(memory.data), cuda.asked) == (False, 1000, [])


def test_what_the_driver_refuses_to_pin_is_not_unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = driver(monkeypatch, refusal=2)

    def raises_the_refusal(*_: object, **__: object) -> None:
        assert cuda.asked
        raise torch.AcceleratorError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "zeros", raises_the_refusal)
    memory = HostMemory(1000, CARD)
    assert (memory.is_pinned, len(memory.data), len(cuda.asked)) == (False, 1000, 1)
    del memory  # `cudaHostUnregister` would raise here
