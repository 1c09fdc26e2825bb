"""A learner's publisher with a port that records, and a model that moves a little between versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from p2prl.clock import Clock
from p2prl.learner.learner_config import LearnerConfig
from p2prl.learner.published_policies import chained_weights
from p2prl.learner.publishing.policy_publisher import PolicyPublisher
from p2prl.learner.signing_sender import SigningSender
from p2prl.learner.storage import LearnerStorage
from p2prl.learner.timing.stages import InlineStage
from p2prl.learner.training.local_update_engine import LocalEngine
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.update_engine import EngineSettings
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import flatten, layout_of
from p2prl.net.process import control
from p2prl.protocol.envelope import open_envelope
from p2prl.protocol.manifests import PolicyManifest
from p2prl.protocol.policy_head import PolicyHead
from p2prl.swarm import signals
from tests.unit.learner.small_run import NOW, SmallRun


class RecordingPort:
    """A network port that records messages."""

    addresses: tuple[str, ...] = ()
    status = None

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: control.ToNetwork) -> None:
        assert isinstance(message, signals.Publish)
        self.sent.append(open_envelope(message.envelope, now=None).body)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        return []

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass

    def manifests(self) -> list[PolicyManifest]:
        return [body for body in self.sent if isinstance(body, PolicyManifest)]

    def heads(self) -> list[PolicyHead]:
        return [body for body in self.sent if isinstance(body, PolicyHead)]


class HandClock(Clock):
    time = NOW

    def now(self) -> float:
        return self.time


def run_in(directory: Path) -> SmallRun:
    return SmallRun(directory, staleness_bound=64)


class Publishing:
    """A learner's publisher, and a model that moves a little between versions."""

    def __init__(self, small_run: SmallRun, *, dead_band_ulp: int = 0, dtype: str = "bfloat16") -> None:
        self.small_run, self.port, self.clock = small_run, RecordingPort(), HandClock()
        self.model = tiny_model(seed=3).model
        self.engine = LocalEngine(self.model, EngineSettings(temperature=1.0, optimizer=OptimizerConfig()))
        self.layout = layout_of(self.model, dtype)
        self.dead_band_ulp = dead_band_ulp
        self.stage = InlineStage()
        self.training: list[bytes] = []
        self.generator = torch.Generator().manual_seed(7)
        self.start(small_run.storage)

    def start(self, storage: LearnerStorage) -> None:
        """The publisher of a learner that has just started, with the files on disk."""
        sender = SigningSender(self.small_run.learner, self.small_run.run, self.small_run.journal, self.clock)
        sender.attach(self.port)
        self.publisher = PolicyPublisher(
            storage=storage,
            layout=self.layout,
            sender=sender,
            config=LearnerConfig(chunk_pieces=4, dead_band_ulp=self.dead_band_ulp),
            clock=self.clock,
            random_bytes=bytes,
            stage=self.stage,
        )

    def publish(self, versions: int) -> None:
        for _ in range(versions):
            step = len(self.port.manifests())
            self.training.append(bytes(flatten(self.model, self.layout)))
            self.publisher.begin(self.publisher.copy(self.engine), step=step)
            assert self.publisher.finish() == step
            self.clock.time += 30.0
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter += 1e-4 * torch.randn(parameter.shape, generator=self.generator)

    def weights(self, manifest: PolicyManifest) -> bytes:
        """The weights of a version."""
        weights = chained_weights(self.small_run.blobs.directory, manifest)
        assert weights is not None
        return bytes(weights)

    def published(self) -> list[bytes]:
        """The weights of every version published so far."""
        return [self.weights(manifest) for manifest in self.port.manifests()]

    def lose_weights(self) -> None:
        """Delete all weights on disk."""
        self.small_run.published.chain.remove()
        for manifest in self.port.manifests():
            self.small_run.blobs.path(manifest.weights.root).unlink(missing_ok=True)
