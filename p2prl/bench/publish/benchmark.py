"""The publish benchmark: how long training waits for a new version, and what the version costs until it is announced.

It drives the learner's own publisher (`p2prl.learner.publishing.policy_publisher`) with a model of Qwen2's shape and
random weights. Between two versions the weights move as under Adam with stationary moments (β₁ .9, a tenth of a unit
gradient is signal); at a learning rate of 1e-6 that changes one bf16 word in a hundred. Nothing is trained while a
version is written. The model may be on a GPU: the copy out of it is then part of what training waits for.
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from p2prl.bench.device_time import CPU, Stopwatch
from p2prl.bench.random_models import SHAPES, random_model
from p2prl.clock import SystemClock
from p2prl.errors import require
from p2prl.learner.learner_config import LearnerConfig
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.learner.publishing.policy_publisher import PolicyPublisher
from p2prl.learner.signing_sender import SigningSender
from p2prl.learner.storage import LearnerStorage
from p2prl.learner.timing.stages import ThreadStage
from p2prl.models.weights.layout import WeightLayout, flatten, layout_of
from p2prl.net.process import control
from p2prl.net.process.version_rebuild import rebuild
from p2prl.net.storage.chain_blobs import CHAIN_FOLDER, ChainBlobs
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.storage.weight_store import WeightStore
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.kinds import Kind
from p2prl.protocol.manifests import DTYPE_BYTES, PolicyManifest
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm import signals

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCKED_BOUND_S, HEAD_BOUND_S, SWITCH_BOUND_S, SILENT_BOUND_S = 0.3, 3.0, 5.0, 0.1
REBUILD_BOUND_CPU_S = 2.0
MEMORY_BOUND_BYTES = 300 * 1000 * 1000
"""Demands at half a billion parameters in bf16, on two quiet cores."""

_FIRST_MOMENT = math.sqrt(0.1 / 1.9 + 0.01)
"""Standard deviation of Adam's first moment: of noise of variance 1 averaged with β₁ = .9, and of a signal of .1. The
second moment is 1. Drawn anew for each version, where a real one would keep nine tenths of it."""
_BLOCK = 1 << 20
_SAMPLE_S = 0.005


@dataclass(frozen=True, kw_only=True)
class PublishBenchConfig:
    """Size of the model, and number of versions."""

    model: str = "123m"
    versions: int = 9
    dtype: str = "bfloat16"
    learning_rate: float = 1e-6
    device: torch.device = CPU
    """Of the trainer's model."""
    seed: int = 0

    def __post_init__(self) -> None:
        require("model", self.model, self.model in SHAPES, f"one of {', '.join(SHAPES)}")
        require("versions", self.versions, 2 <= self.versions <= 1000, "2 to 1000")
        require("learning_rate", self.learning_rate, 0 < self.learning_rate <= 1, "above 0, at most 1")


@dataclass(frozen=True, kw_only=True)
class PublishReport:
    """Times in seconds, medians over the versions after the first unless said otherwise.

    It has this many fields because each is a figure of the report.
    """

    bytes: int
    """Of one version's weights."""
    versions: int
    changed_share: float
    """Share of the words that differ from the version before."""
    trainer_blocked_s: float
    """Copy of the weights out of the model."""
    head_s: float
    """From the copy until the head is sent."""
    head_longest_s: float
    written_s: float
    """From the copy until the weights file is rewritten and old versions are forgotten. The next version waits for
    that."""
    head_cpu_s: float
    """Processor time of the whole process in that time."""
    peak_bytes_beyond_weights: int
    """Most anonymous memory while any version was written, the first with its keyframe too, less what the process had
    before the first, which has one copy of the weights."""
    patch_bytes: int
    """All patches that were published."""
    store_bytes: int
    """Files of the weight chain."""
    switch_s: float
    """The longest time to bring any version of the window to a file."""
    serve_s: float
    """Longest from the request for a chunk of any version until it can be sent; those of older ones are computed."""
    loop_silent_s: float
    """Longest that an event loop was silent which offered every version and served those chunks."""
    rebuild_s: float
    """For a worker to make a version out of the one before and its patch."""
    rebuild_cpu_s: float
    """The same in processor time."""
    worker_bytes: int
    """The worker's weight chain, which holds every version, at the end."""

    @property
    def met(self) -> bool:
        """Whether every demand is met."""
        return (
            self.trainer_blocked_s <= BLOCKED_BOUND_S
            and self.head_s <= HEAD_BOUND_S
            and self.switch_s <= SWITCH_BOUND_S
            and self.peak_bytes_beyond_weights <= MEMORY_BOUND_BYTES
            and self.store_bytes <= self.bytes + 2 * self.patch_bytes
            and self.loop_silent_s <= SILENT_BOUND_S
            and self.rebuild_cpu_s <= REBUILD_BOUND_CPU_S
        )


class _Port:
    """A network that keeps what is sent."""

    addresses: tuple[str, ...] = ()
    status = None

    def __init__(self) -> None:
        self.manifests: list[PolicyManifest] = []
        self.head_at = 0.0
        """When the newest head was sent."""

    def send(self, message: control.ToNetwork) -> None:
        if isinstance(message, signals.Publish):
            opened = open_envelope(message.envelope, now=None)
            self.head_at = time.perf_counter()
            if opened.kind is Kind.POLICY_MANIFEST:
                self.manifests.append(body_of(opened, PolicyManifest))

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        del timeout_s
        return []

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Memory:
    """The most anonymous memory of this process, sampled by a thread."""

    def __init__(self) -> None:
        self.most_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self.most_bytes = max(self.most_bytes, anonymous_bytes())


def anonymous_bytes() -> int:
    """Memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


class _Training:
    """Moves a model's weights as Adam with stationary moments would."""

    def __init__(self, model: PreTrainedModel, config: PublishBenchConfig) -> None:
        self._model = model
        self.device = config.device
        self._step = config.learning_rate * _FIRST_MOMENT
        self._parameters = [parameter.detach().view(-1) for parameter in model.parameters()]
        self._generator = torch.Generator(config.device).manual_seed(config.seed)

    def step(self) -> None:
        for flat in self._parameters:
            for start in range(0, len(flat), _BLOCK):
                part = flat[start : start + _BLOCK]
                noise = torch.randn(len(part), generator=self._generator, device=part.device)
                part.add_(noise, alpha=self._step)

    def copy_weights(self, layout: WeightLayout, into: bytearray) -> bytearray:
        return flatten(self._model, layout, into)


def run_publish_bench(config: PublishBenchConfig, *, on_progress: Callable[[str, float], None]) -> PublishReport:
    """Publish versions of a model in a temporary folder and measure what each costs."""
    with tempfile.TemporaryDirectory(prefix="p2prl-publish-") as folder:
        return _run(config, Path(folder), on_progress)


def _run(config: PublishBenchConfig, folder: Path, on_progress: Callable[[str, float], None]) -> PublishReport:
    model = random_model(config.model, dtype="float32", device=config.device, seed=config.seed)
    layout = layout_of(model, config.dtype)
    learner, clock, port = identity_of("learner"), SystemClock(), _Port()
    manifest = msgspec.structs.replace(
        run_manifest_of(learner, weight_bytes=layout.size_bytes), staleness_bound=config.versions
    )
    storage = LearnerStorage(LearnerPaths(folder), manifest)
    sender = SigningSender(learner, Digest(bytes(32)), storage.journal, clock)
    sender.attach(port)
    publisher = PolicyPublisher(
        storage=storage,
        layout=layout,
        sender=sender,
        config=LearnerConfig(),
        clock=clock,
        random_bytes=os.urandom,
        stage=ThreadStage("p2prl-publishing", on_start=lambda: None, on_done=lambda: None),
    )
    training, copy = _Training(model, config), publisher.copy
    blocked: list[float] = []
    heads: list[float] = []
    written: list[float] = []
    processor: list[float] = []
    beyond: list[int] = []
    try:
        copy(training)  # the memory that every copy is made into, and what a card's driver takes when it is first used
        before = anonymous_bytes()
        for version in range(config.versions):
            watch = Stopwatch(config.device)  # of a GPU that has done what it was given
            weights = copy(training)
            blocked.append(watch.spent().wall_s)
            copied, used = time.perf_counter(), time.process_time()
            with _Memory() as memory:
                publisher.begin(weights, step=version)
                del weights
                publisher.finish(wait=True)
            heads.append(port.head_at - copied)
            written.append(time.perf_counter() - copied)
            processor.append(time.process_time() - used)
            beyond.append(memory.most_bytes - before)
            training.step()
            on_progress("publishing", (version + 1) / config.versions)
        serve_s, loop_silent_s = asyncio.run(_serve(storage.blobs.directory, port.manifests))
        rebuilt_s, rebuilt_cpu_s, worker_bytes = _follow(storage, port.manifests, config.dtype, folder / "worker")
        return PublishReport(
            bytes=layout.size_bytes,
            versions=config.versions,
            changed_share=_changed_share(storage, config),
            trainer_blocked_s=statistics.median(blocked[1:]),
            head_s=statistics.median(heads[1:]),
            head_longest_s=max(heads[1:]),
            written_s=statistics.median(written[1:]),
            head_cpu_s=statistics.median(processor[1:]),
            peak_bytes_beyond_weights=max(beyond),
            patch_bytes=sum(p.blob.size_bytes for each in port.manifests[1:] for p in each.patches),
            store_bytes=storage.published.chain.disk_bytes,
            switch_s=max(_switch_s(storage, version) for version in range(config.versions)),
            serve_s=serve_s,
            loop_silent_s=loop_silent_s,
            rebuild_s=statistics.median(rebuilt_s),
            rebuild_cpu_s=statistics.median(rebuilt_cpu_s),
            worker_bytes=worker_bytes,
        )
    finally:
        publisher.close()
        storage.close()


def _changed_share(storage: LearnerStorage, config: PublishBenchConfig) -> float:
    word = np.dtype(f"<u{DTYPE_BYTES[config.dtype]}")
    last, before = (np.frombuffer(storage.published.chain.copy_of(config.versions - number), word) for number in (1, 2))
    return float(np.mean(last != before))


def _switch_s(storage: LearnerStorage, version: int) -> float:
    policy = storage.published.at(version)
    assert policy is not None
    began = time.perf_counter()
    weights = storage.published.read(policy)
    seconds = time.perf_counter() - began
    checked = np.frombuffer(weights, dtype=np.uint8)[:: len(weights) // 64]
    assert len(checked) >= 64
    return seconds


def _follow(
    storage: LearnerStorage, manifests: Sequence[PolicyManifest], dtype: str, folder: Path
) -> tuple[list[float], list[float], int]:
    """(wall times, processor times, bytes of the chain) of a worker that has version 0 and follows the others."""
    worker = DiskBlobStore(folder)
    first = manifests[0].weights
    worker.add(first, storage.published.chain.copy_of(0))
    wall_s, processor_s = [], []
    for before, manifest in pairwise(manifests):
        patch = manifest.patch_from(before.version)
        if patch is None:  # it would be as large as the weights
            worker.add(manifest.weights, storage.published.chain.copy_of(manifest.version))
            continue
        worker.take_in(patch.blob, storage.blobs.path(patch.blob.root))
        order = control.PatchesReady(
            digest=b"",
            version=manifest.version,
            weights=manifest.weights,
            weights_digest=manifest.weights_digest,
            dtype=dtype,
            base_version=before.version,
            base=before.weights.root,
            patches=(patch.blob.root,),
            held=tuple(each.weights.root for each in manifests[: manifest.version]),
            folder=str(folder),
        )
        began, used = time.perf_counter(), time.process_time()
        rebuild(order)
        wall_s.append(time.perf_counter() - began)
        processor_s.append(time.process_time() - used)
    return wall_s, processor_s, WeightStore(folder / CHAIN_FOLDER).disk_bytes


async def _serve(directory: Path, manifests: Sequence[PolicyManifest]) -> tuple[float, float]:
    """(longest time to a chunk, longest silence of the loop) of a network process that is asked for every chunk of the
    newest version and for one of each older one."""
    loop, came, pulse = asyncio.get_running_loop(), asyncio.Event(), _Pulse()
    beating = asyncio.create_task(pulse.beat())

    def chunk_came() -> None:  # on the store's thread
        loop.call_soon_threadsafe(came.set)

    store = ChainBlobs(directory, chunk_came)
    longest = 0.0
    try:
        for manifest in manifests:
            for ref in (manifest.weights, *(patch.blob for patch in manifest.patches)):
                store.begin(ref)
                await asyncio.sleep(0)
        last = manifests[-1].weights
        asked = [(each.weights, each.version % each.weights.total) for each in manifests[:-1]]
        for ref, index in [*asked, *((last, index) for index in range(last.total))]:
            began = time.perf_counter()
            while not store.ready(ref, index):
                await came.wait()
                came.clear()
            store.read(ref, index)
            longest = max(longest, time.perf_counter() - began)
        await asyncio.sleep(_SAMPLE_S)
    finally:
        beating.cancel()
        store.close()
    return longest, pulse.longest_s


class _Pulse:
    """The longest time that an event loop ran nothing else, beyond the interval of its beat."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def beat(self) -> None:
        """Beat until cancelled."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(_SAMPLE_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - began - _SAMPLE_S)
