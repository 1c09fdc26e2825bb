"""The hot-swap benchmark: the stall of sampling when a volunteer switches to the next policy during a transfer.

As in a real volunteer, another process receives, hashes and writes chunks as fast as it can; a background thread
decodes the patch over the weights file and stages the policy; the main thread samples without pause and swaps between
two tokens. The benchmark measures the gap between consecutive tokens, and afterwards the parts of a swap alone.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from transformers import GPT2Config, GPT2LMHeadModel

from p2prl.bench.device_time import CPU
from p2prl.errors import require
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.sampler_port import GenerationRequest, StagedWeights
from p2prl.models.sampling import sample_all
from p2prl.models.weights.layout import flatten, layout_of
from p2prl.net.process import control
from p2prl.net.process.version_rebuild import rebuild
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.storage.held_weights import open_weights
from p2prl.patches.encode import encode_patch
from p2prl.patches.kernel_choice import fastest_kernels
from p2prl.patches.stream_format import segment_spans
from p2prl.patches.words import WORD_TYPES, Words, WordType
from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import blob_of, chunk_bytes_for
from p2prl_lab.bench.hot_swap.incoming_transfer import receive_chunks
from p2prl_lab.bench.hot_swap.part_costs import PartCosts, part_costs

STALL_BOUND_S = 0.3

_WIDTH, _LAYERS, _VOCABULARY = 512, 9, 4096
"""30.5 million parameters in GPT-2's shape."""

_ROWS, _PROMPT_TOKENS, _NEW_TOKENS = 4, 8, 32
_CHANGED_SHARE = 0.02
"""Share of words that differ between two versions, as after an update at a learning rate of 3e-6."""

_QUIET_STEPS = 30


@dataclass(frozen=True, kw_only=True)
class SwapBenchConfig:
    """Number of swaps, and the weights."""

    swaps: int = 10
    dtype: str = "bfloat16"
    """Word type of the weights on disk; the model computes in float32."""
    device: torch.device = CPU
    """Of the model."""
    seed: int = 0

    def __post_init__(self) -> None:
        require("swaps", self.swaps, 1 <= self.swaps <= 1000, "1 to 1000")
        require("dtype", self.dtype, self.dtype in WORD_TYPES, f"one of {', '.join(WORD_TYPES)}")


@dataclass(frozen=True, kw_only=True)
class SwapReport:
    """Times in seconds."""

    parameters: int
    patch_bytes: int
    stalls_s: tuple[float, ...]
    """Gap between the two tokens around each swap."""
    swaps_s: tuple[float, ...]
    """Part of that gap spent on the swap and its known-answer test."""
    step_s: float
    """Median gap while nothing else is running."""
    busy_step_s: float
    """Median gap while a transfer runs and the next policy is prepared."""
    busy_step_longest_s: float
    prepare_s: float
    """Median time of the background thread: decode, write, stage."""
    transfer_mb_s: float
    parts: PartCosts
    """Of a swap, with nothing beside it."""

    @property
    def met(self) -> bool:
        return max(self.stalls_s) <= STALL_BOUND_S


def run_swap_bench(config: SwapBenchConfig, *, on_progress: Callable[[str, float], None] | None = None) -> SwapReport:
    """Sample through `config.swaps` swaps."""
    with tempfile.TemporaryDirectory(prefix="p2prl-swap-") as folder:
        return _Bench(config, Path(folder)).run(on_progress or (lambda *_: None))


class _Bench:
    """One model, two versions of its weights, and the timings."""

    def __init__(self, config: SwapBenchConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        word_type = WORD_TYPES[config.dtype]
        model = _model(config.seed).to(config.device)
        self._layout = layout_of(model, config.dtype)
        self._policy = PolicyModel(model, self._layout)
        self._sampler = TransformersSampler(self._policy)
        first = np.frombuffer(flatten(model, self._layout), dtype=word_type.dtype)
        self._versions = [first, _moved(first, config.seed)]
        self._states = [blake3(words.tobytes()).digest() for words in self._versions]
        self._blobs = [blob_of(words.tobytes(), chunk_bytes_for(words.nbytes)) for words in self._versions]
        store = DiskBlobStore(folder)
        store.add(self._blobs[0], first.tobytes())
        self._patches: list[Digest] = []
        for kind in (0, 1):
            patch = _patch(self._versions[1 - kind], self._versions[kind], word_type)
            ref = blob_of(patch, chunk_bytes_for(len(patch)))
            store.add(ref, patch)
            self._patches.append(ref.root)
        self._gaps: dict[str, list[float]] = {"quiet": [], "busy": [], "swap": []}
        self._swaps_s: list[float] = []
        self._prepare_s: list[float] = []

    def run(self, tell: Callable[[str, float], None]) -> SwapReport:
        tell("sampling alone", 0.0)
        while len(self._gaps["quiet"]) < _QUIET_STEPS:
            self._sample(swaps=0, pending=None)
        context = multiprocessing.get_context("spawn")
        received, stop = context.Value("q", 0), context.Event()
        network = context.Process(target=receive_chunks, args=(self._folder / "arriving", received, stop), daemon=True)
        network.start()
        try:
            while not received.value:
                time.sleep(0.01)
            began, before = time.monotonic(), received.value
            with ThreadPoolExecutor(max_workers=1) as background:
                for number in range(1, self._config.swaps + 1):
                    tell("swapping", number / self._config.swaps)
                    self._sample(swaps=number, pending=background.submit(self._prepare, number))
            transferred = (received.value - before) / (time.monotonic() - began) / 1e6
        finally:
            stop.set()
            network.join()
        tell("parts of a swap", 1.0)
        parts = part_costs(self._policy, self._layout, self._versions[0], seed=self._config.seed)
        return SwapReport(
            parameters=self._layout.parameters,
            patch_bytes=(self._folder / self._patches[1].hex()).stat().st_size,
            stalls_s=tuple(self._gaps["swap"]),
            swaps_s=tuple(self._swaps_s),
            step_s=float(np.median(self._gaps["quiet"])),
            busy_step_s=float(np.median(self._gaps["busy"])),
            busy_step_longest_s=max(self._gaps["busy"]),
            prepare_s=float(np.median(self._prepare_s)),
            transfer_mb_s=transferred,
            parts=parts,
        )

    def _prepare(self, number: int) -> StagedWeights:
        """Decode, write and stage a version, in the background thread."""
        began = time.monotonic()
        new, old = self._blobs[number % 2], self._blobs[1 - number % 2]
        rebuild(
            control.PatchesReady(
                digest=b"",
                version=number,
                weights=new,
                weights_digest=self._states[number % 2],
                dtype=self._config.dtype,
                base_version=number - 1,
                base=old.root,
                patches=(self._patches[number % 2],),
                held=(old.root,),
                folder=str(self._folder),
            )
        )
        staged = self._sampler.stage(open_weights(self._folder / new.root.hex()), number)
        self._prepare_s.append(time.monotonic() - began)
        return staged

    def _sample(self, *, swaps: int, pending: Future[StagedWeights] | None) -> None:
        """Sample batches until `swaps` swaps are done; swap as soon as a policy is staged."""
        waiting = pending
        kind = "quiet" if pending is None else "busy"
        last = 0.0

        def on_step(_: int) -> None:
            nonlocal last, kind, waiting
            now = time.monotonic()
            if last:
                self._gaps[kind].append(now - last)
            last, kind = now, "quiet" if pending is None else "busy"
            if waiting is not None and waiting.done():
                staged, waiting, kind = waiting.result(), None, "swap"
                self._sampler.swap(staged)
                self._swaps_s.append(time.monotonic() - now)

        requests = [
            GenerationRequest(
                prompt_ids=tuple(range(1, _PROMPT_TOKENS + 1)),
                seed=self._config.seed * _ROWS + row,
                max_new_tokens=_NEW_TOKENS,
                temperature=1.0,
                stop_ids=frozenset(),
            )
            for row in range(_ROWS)
        ]
        while True:
            last = 0.0
            sample_all(self._sampler, requests, on_step=on_step)
            if kind == "swap":  # the batch ended before another token was sampled
                self._gaps["swap"].append(time.monotonic() - last)
                kind = "busy"
            if len(self._swaps_s) >= swaps:
                return


def _model(seed: int) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=_VOCABULARY,
        n_positions=128,
        n_embd=_WIDTH,
        n_layer=_LAYERS,
        n_head=8,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config).eval()


def _moved(words: Words, seed: int) -> Words:
    """One ulp up or down in some words, the lowest bit of the mantissa flipped."""
    moved = words.copy()
    moved[np.random.default_rng(seed).random(len(words)) < _CHANGED_SHARE] ^= 1
    return moved


def _patch(old: Words, new: Words, word_type: WordType) -> bytes:
    pairs = [(old[start : start + count], new[start : start + count]) for start, count in segment_spans(len(old))]
    return b"".join(encode_patch(pairs, words=len(old), word_type=word_type, kernels=fastest_kernels()))
