"""The confined process of a run's tokenizer: builds it from a stranger's rules, then encodes and decodes.

`p2prl.models.tokenizer.confined` starts it as `python -m p2prl.models.tokenizer.process FD`. It has read nothing of a
stranger when it confines itself. Each request has a limit of processor time, after which the kernel ends the process.
"""

from __future__ import annotations

import signal
import sys
import warnings

from tokenizers import Tokenizer

from p2prl.confinement.compute_only import confine_to_computing
from p2prl.confinement.pipe_io import read_exactly, write_all
from p2prl.errors import RemoteProtocolError
from p2prl.models.tokenizer import messages
from p2prl.models.tokenizer.backend import read_backend
from p2prl.models.tokenizer.text_codec import library_panics

REQUEST_S = 1.5
"""Processor seconds for a text or a completion: real tokenizers take milliseconds."""

BUILD_S, BUILD_BYTES_PER_S = 1.2, 1.5e6
"""Processor seconds to read a tokenizer.json, and more by its size: 4 MB/s measured on a slow, busy core."""

MEMORY_BYTES = 440_000_000
"""Memory besides Python's own 60 MB. Reading takes 21 bytes for each of tokenizer.json: 230 MB for Llama 3's 128,000
entries, 410 MB for Gemma 3's 262,000."""


def build_seconds(size_bytes: int) -> float:
    """Processor seconds to read a tokenizer.json of this size."""
    return BUILD_S + size_bytes / BUILD_BYTES_PER_S


def main() -> None:
    """Confine this process, then answer on the socket whose descriptor is the last argument, until it closes."""
    descriptor = int(sys.argv[-1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    header = read_exactly(descriptor, messages.HEADER.size)
    if not header:
        return
    kind, length = messages.HEADER.unpack(header)
    assert kind == messages.BUILD
    layers = confine_to_computing(memory_bytes=MEMORY_BYTES)
    backend: Tokenizer | None = None
    try:
        with _limited(build_seconds(length)):
            special, vocabulary, rules, hidden = messages.read_build(read_exactly(descriptor, length))
            backend = read_backend(rules, list(special.values()), vocabulary, hidden=hidden)
            eos = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
            del rules
        _write(descriptor, messages.DONE, messages.ready_payload(eos, layers))
    except (RemoteProtocolError, MemoryError) as error:
        _refuse(descriptor, error)
        return
    while header := read_exactly(descriptor, messages.HEADER.size):
        kind, length = messages.HEADER.unpack(header)
        payload = read_exactly(descriptor, length)
        try:
            with _limited(REQUEST_S), library_panics():
                answer = _answer(backend, kind, payload)
            _write(descriptor, messages.DONE, answer)
        except Exception as error:  # noqa: BLE001  # whatever the library raises is told to the worker
            _refuse(descriptor, error)


def _answer(backend: Tokenizer, kind: bytes, payload: bytes) -> bytes:
    if kind == messages.DECODE:
        text: str = backend.decode(messages.read_ids(payload), skip_special_tokens=False)
        return text.encode("utf-8", "surrogatepass")
    adds = kind == messages.ENCODE
    texts = messages.read_texts(payload)
    return messages.rows_payload([backend.encode(text, add_special_tokens=adds).ids for text in texts])


def _refuse(descriptor: int, error: BaseException) -> None:
    reason = "the run's tokenizer needs too much memory" if isinstance(error, MemoryError) else error
    _write(descriptor, messages.REFUSED, messages.reason_payload(RemoteProtocolError(str(reason))))


class _limited:  # noqa: N801  # reads as a word in a `with`
    """Ends this process when a block takes more processor time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, self._seconds)

    def __exit__(self, *exception: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _write(descriptor: int, kind: bytes, payload: bytes) -> None:
    write_all(descriptor, messages.message(kind, payload))


if __name__ == "__main__":
    main()
