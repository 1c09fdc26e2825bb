"""Stages of an engine's start, told to its caller: some engines take a minute, inside a library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


@contextmanager
def stages_told(on_stage: Callable[[str], None]) -> Iterator[None]:
    """Pass the stages of engines that are started within to `on_stage`: a short text each."""
    before = _listener.set(on_stage)
    try:
        yield
    finally:
        _listener.reset(before)


def tell_stage(text: str) -> None:
    """Tell the stage that begins, or how far it is."""
    on_stage = _listener.get()
    if on_stage is not None:
        on_stage(text)
