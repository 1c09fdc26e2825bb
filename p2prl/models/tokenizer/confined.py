"""A run's tokenizer in a confined process of its own: a stranger's rules never run in a worker.

`TextCodec` uses it like a tokenizer of transformers. The process is persistent: a prompt or a completion costs a round
trip through a pipe. One that overruns its limits is replaced, and the error says that the run is at fault.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from p2prl.confinement.children import Child, Launch, Program
from p2prl.errors import MachineError, RemoteProtocolError
from p2prl.models.tokenizer import messages
from p2prl.models.tokenizer.process import MEMORY_BYTES, REQUEST_S, build_seconds

WALL_FACTOR = 20.0
"""Seconds on the clock for one of processor time: a busy machine is no reason to refuse a run."""

MOST_FAILURES = 3
"""Requests in a row that cost a process before no more is started: the run is hopeless."""

_RUNS_FAULT = (-signal.SIGPROF, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGILL, -signal.SIGBUS)
"""Ends of the process that its rules cause: out of time, out of memory (the library aborts), and faults."""

_CLOSE_S = 2.0

REMEDY = "Leave this run: no honest learner makes such a tokenizer."

_START = (
    "import json, sys; sys.path[:0] = json.loads(sys.argv[1]); from p2prl.models.tokenizer.process import main; main()"
)


def tokenizer_program() -> Program:
    """The program of the process. Nothing of the owner's environment is in its own."""
    package = str(Path(__file__).resolve().parents[3])
    path = [package, *(entry for entry in sys.path if Path(entry).is_absolute())]
    return Program(
        command=(sys.executable, "-P", "-s", "-c", _START, json.dumps(path)),
        environment={
            "PYTHONDONTWRITEBYTECODE": "1",
            "LC_ALL": "C.UTF-8",
            "PATH": "/usr/bin:/bin",
            "HOME": "/nonexistent",
            "TOKENIZERS_PARALLELISM": "false",  # a process with one thread can be confined
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        },
        folder="/",
        silent=True,
    )


class _Added(msgspec.Struct):
    content: str
    special: bool = False


class _Rules(msgspec.Struct):
    """What is read of a tokenizer.json outside the process: the texts that it looks for."""

    added_tokens: list[_Added] | None = None


class _EndedError(Exception):
    """The process ended before it replied."""


class ConfinedTokenizer:
    """Encodes and decodes as the fast tokenizer of a run's files would. Any thread may use it; close it."""

    def __init__(
        self,
        rules: bytes,
        special: Mapping[str, str],
        vocabulary: int,
        *,
        launch: Launch | None = None,
        hidden: Sequence[str] = (),
    ) -> None:
        """`rules` is a tokenizer.json, `special` the texts of special tokens by name.

        `hidden` tokens are known by their private names alone (`p2prl/models/tokenizer/control_text.py`).
        `RemoteProtocolError` when it is refused or too costly, `MachineError` when no process starts.
        """
        self._launch = launch or tokenizer_program().start
        self._rules, self._special, self._vocabulary = rules, dict(special), vocabulary
        self._hidden = tuple(hidden)
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._failures = 0
        self.eos_token_id: int | None = None
        """Token of the end of a text, if the run names one."""
        self.layers: tuple[str, ...] = ()
        """Layers that confine the process."""
        with self._lock:
            self._reply(None, "")

    def __enter__(self) -> ConfinedTokenizer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Tokens of a text. `RemoteProtocolError` as in `__init__`."""
        return self._encode([text], special=add_special_tokens)[0]

    def __call__(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> dict[str, list[list[int]]]:
        """Tokens of several texts, under `input_ids`."""
        return {"input_ids": self._encode(texts, special=add_special_tokens)}

    def decode(self, token_ids: Sequence[int], **options: bool) -> str:
        """Text of tokens, special ones included and no spaces cleaned up."""
        assert not any(options.values())
        request = messages.message(messages.DECODE, messages.ids_payload(token_ids))
        return self._ask(request, f"a completion of {len(token_ids):,} tokens").decode("utf-8", "replace")

    def added_tokens(self) -> list[tuple[str, bool]]:
        """The tokens that are looked for in texts, each with whether it is special."""
        try:
            added = msgspec.json.decode(self._rules, type=_Rules).added_tokens or []
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise RemoteProtocolError("the run's tokenizer has added tokens that cannot be read") from error
        return [
            *((token.content, token.special) for token in added),
            *((text, True) for text in self._special.values()),
        ]

    def hiding(self, tokens: Collection[str]) -> ConfinedTokenizer:
        """A second process with the same rules, in which these tokens have their private names."""
        hidden = sorted(tokens)
        return ConfinedTokenizer(self._rules, self._special, self._vocabulary, launch=self._launch, hidden=hidden)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._failures = MOST_FAILURES
            self._stop()

    def _encode(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        kind = messages.ENCODE if special else messages.ENCODE_PLAIN
        subject = f"a text of {sum(map(len, texts)):,} characters"
        reply = self._ask(messages.message(kind, messages.texts_payload(texts)), subject)
        return messages.read_rows(reply, count=len(texts))

    def _ask(self, request: bytes, subject: str) -> bytes:
        with self._lock:
            if self._failures >= MOST_FAILURES:
                raise RemoteProtocolError(f"the run's tokenizer failed {self._failures} times", remedy=REMEDY)
            reply = self._reply(request, subject)
            self._failures = 0
            return reply

    def _reply(self, request: bytes | None, subject: str) -> bytes:
        """The reply to a request, or to nothing but the start. Tried twice where the machine may be at fault."""
        code = 0
        for _ in range(2):
            try:
                if self._child is None:
                    self._start()
                return b"" if request is None else self._exchange(request, REQUEST_S)
            except (_EndedError, OSError):
                code = self._stop()
                if code in _RUNS_FAULT:
                    break
            except RemoteProtocolError:
                if request is None:
                    self._stop()
                raise
        if code not in _RUNS_FAULT:
            raise MachineError(
                f"the process of the run's tokenizer ended with status {code}",
                remedy="Check that memory and processes are left on this machine (ulimit -a).",
            )
        self._failures += 1
        seconds = REQUEST_S if subject else build_seconds(len(self._rules))
        raise RemoteProtocolError(
            f"the run's tokenizer needs more than {seconds:.1f} s or {MEMORY_BYTES / 1e6:.0f} MB "
            f"for {subject or 'its own rules'}",
            remedy=REMEDY,
        )

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._connection = ours
        with theirs:
            self._child = self._launch(theirs.fileno())
        payload = messages.build_payload(self._special, self._vocabulary, self._rules, self._hidden)
        reply = self._exchange(messages.message(messages.BUILD, payload), build_seconds(len(self._rules)))
        self.eos_token_id, self.layers = messages.read_ready(reply)

    def _exchange(self, request: bytes, seconds: float) -> bytes:
        """Send a request and read its reply. `_EndedError` at the end of the stream or of time."""
        until = time.monotonic() + WALL_FACTOR * seconds
        try:
            self._connection.settimeout(WALL_FACTOR * seconds)
            self._connection.sendall(request)
            kind, length = messages.read_header(self._receive(messages.HEADER.size, until))
            payload = self._receive(length, until)
        except OSError as error:
            raise _EndedError from error
        if kind == messages.REFUSED:
            raise RemoteProtocolError(messages.read_reason(payload), remedy=REMEDY)
        return payload

    def _receive(self, count: int, until: float) -> bytes:
        parts: list[bytes] = []
        while count:
            self._connection.settimeout(max(0.001, until - time.monotonic()))
            part = self._connection.recv(min(count, 1 << 20))
            if not part:
                raise _EndedError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _stop(self) -> int:
        """End the process; return its exit status, that of a kill if it had to be."""
        child, self._child = self._child, None
        if child is None:
            return 0
        self._connection.close()
        with suppress(TimeoutError):
            return child.wait(_CLOSE_S)
        child.kill()
        return child.wait()
