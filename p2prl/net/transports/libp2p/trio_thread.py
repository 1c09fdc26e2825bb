"""A trio event loop in its own thread, called from asyncio: py-libp2p runs on trio, the rest of p2prl does not."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from p2prl.errors import MachineError, TransportError
from p2prl.net.transports.libp2p.library import Library

T = TypeVar("T")

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 10.0
_MARGIN_S = 1.0
"""Grace period after a call's own timeout; after it the thread counts as stuck."""


class TrioThread:
    """Runs one service on trio until `close`. Build it on the asyncio loop that will call it."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._stopped = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        # Set by the trio thread before `_ready`:
        self._token: Any = None
        self._nursery: Any = None
        self._stop: Any = None

    async def start(self, service: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        """Enter `service` on trio and keep it open. Raises `MachineError` when it cannot start."""
        self._thread = threading.Thread(target=self._run, args=(service,), name="libp2p", daemon=True)
        self._thread.start()
        async with asyncio.timeout(_START_TIMEOUT_S):
            await self._ready

    async def call(self, timeout_s: float, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` on trio and return its result, or raise its failure as `TransportError`."""
        if self._closed:
            raise TransportError("this transport is closed")
        answer: asyncio.Future[T] = self._loop.create_future()
        trio = self._library.trio

        async def run() -> None:
            try:
                with trio.fail_after(timeout_s):
                    result = await work()
            except Exception as error:  # noqa: BLE001 - passed to the caller, who raises it
                self._resolve(answer, None, error)
            else:
                self._resolve(answer, result, None)

        try:
            self._token.run_sync_soon(lambda: self._nursery.start_soon(run))
        except trio.RunFinishedError as error:
            raise TransportError("the libp2p thread has ended") from error
        try:
            async with asyncio.timeout(timeout_s + _MARGIN_S):
                return await answer
        except (TimeoutError, trio.TooSlowError) as error:
            raise TransportError(f"no answer in {timeout_s:g} s") from error
        except self._library.failures as error:
            raise TransportError(f"{type(error).__name__}: {error}") from error

    def call_asyncio(self, function: Callable[..., object], *arguments: object) -> None:
        """From trio: call a function on the asyncio loop."""
        self._loop.call_soon_threadsafe(function, *arguments)

    async def await_asyncio(self, work: Callable[[], Awaitable[None]]) -> None:
        """From trio: run a coroutine on the asyncio loop and wait for it."""
        done = self._library.trio.Event()

        async def run() -> None:
            try:
                await work()
            finally:
                with contextlib.suppress(self._library.trio.RunFinishedError):
                    self._token.run_sync_soon(done.set)

        asyncio.run_coroutine_threadsafe(run(), self._loop)
        await done.wait()

    async def wait_stopped(self) -> None:
        """Return when the thread has ended, for any reason."""
        await self._stopped.wait()

    async def close(self) -> None:
        """Leave the service and wait for the thread. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._token is not None:
            with contextlib.suppress(self._library.trio.RunFinishedError):  # it may have ended by itself
                self._token.run_sync_soon(self._stop.set)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _STOP_TIMEOUT_S)

    def _run(self, service: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        try:
            self._library.trio.run(self._main, service)
        except BaseException as error:  # noqa: BLE001 - the thread's outermost frame: its end must reach the loop
            causes = error.exceptions if isinstance(error, BaseExceptionGroup) else (error,)
            why = "; ".join(str(cause) for cause in causes)
            reason = MachineError(f"libp2p ended: {why}", remedy="Listen on another port: --listen.")
            self._resolve(self._ready, None, reason)
        with contextlib.suppress(RuntimeError):  # the asyncio loop may be closed already
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def _main(self, service: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        trio = self._library.trio
        async with service(), trio.open_nursery() as self._nursery:
            self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
            self._resolve(self._ready, None, None)
            await self._stop.wait()
            self._nursery.cancel_scope.cancel()

    def _resolve(self, answer: asyncio.Future[T], result: Any, error: BaseException | None) -> None:
        def resolve() -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(resolve)
