"""A real learner with threads, fed by two volunteers that always have groups waiting: how busy is its training thread?

The network is a port in memory, and the groups are made before the clock starts, so that the volunteers cost nothing
while the learner works. Journal, replay, training, receipts and publishing are the product's.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from p2prl.algorithms.loss_registry import build_loss
from p2prl.clock import SystemClock
from p2prl.errors import require
from p2prl.learner.assembly import LearnerParts, assemble_learner
from p2prl.learner.learner_config import LearnerConfig
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.learner.published_policies import chained_weights
from p2prl.learner.service import Learner
from p2prl.learner.timing.next_update import Action
from p2prl.learner.training.loss_pipeline import LossPipeline
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.groups.group_work import ReplayTools
from p2prl.models.sampling import sample_all
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.net.process import control
from p2prl.protocol.envelope import body_of, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import Receipts
from p2prl.protocol.manifests import PolicyManifest
from p2prl.sim.machines import identity_of
from p2prl.sim.simulated_run import SimulatedRun
from p2prl.swarm import signals

BUSY_BOUND = 0.9
"""Wanted: the training thread computes updates for at least this share of the time."""

_VOLUNTEERS = 2
_AHEAD = 1.5
"""Groups made, as a multiple of those trained on: volunteers outrun the learner."""

_WAITING = 48
"""Groups that wait at the learner all the time, as long as there are more."""

_AT_ONCE = 4
"""Groups that arrive in one poll."""

_WIDTH, _LAYERS, _HEADS, _CONTEXT = 384, 6, 6, 64
"""10.6 million parameters: updates of some seconds."""

_POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class OutrunConfig:
    """Length of the run."""

    updates: int = 4
    """The first is not counted: the learner waits for its groups."""
    groups_per_update: int = 48
    """Some 7,000 tokens an update, a fifth of 16 groups of 8 completions of 256 tokens: publishing, whose cost depends
    on the parameters alone, weighs five times as much here."""
    publish_every: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        require("updates", self.updates, 2 <= self.updates <= 1000, "2 to 1000")
        require("groups_per_update", self.groups_per_update, 1 <= self.groups_per_update <= 1024, "1 to 1024")


@dataclass(frozen=True, kw_only=True)
class OutrunReport:
    """Shares of the training thread's time, means over the updates weighted by their length."""

    parameters: int
    updates: int
    seconds_per_update: float
    groups_stored: int
    groups_settled: int
    busy: float
    publishing: float
    checkpoint: float
    waiting_groups: float
    waiting_replay: float

    @property
    def met(self) -> bool:
        """Whether the training thread is busy enough."""
        return self.busy >= BUSY_BOUND


def measure_outrun_learner(config: OutrunConfig) -> OutrunReport:
    """Run a learner to its last update in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="p2prl-outrun-") as folder:
        return _Outrun(config, Path(folder)).run()


class _Outrun:
    """The learner, its port, and the groups."""

    def __init__(self, config: OutrunConfig, folder: Path) -> None:
        self._config = config
        self._metrics: list[dict[str, Any]] = []
        loaded = _model(config.seed)
        self._run = SimulatedRun.of(
            loaded, staleness_bound=max(8, config.updates), publish_every=config.publish_every, seed=config.seed
        )
        self._port = _FedPort()
        self._paths = LearnerPaths(folder)
        self._learner = self._make_learner(loaded)

    def run(self) -> OutrunReport:
        learner, config = self._learner, self._config
        learner.attach(self._port)
        while learner.version < 0:
            learner.turn(wait_s=_POLL_S)
        self._port.feed(self._groups())
        while learner.turn(wait_s=_POLL_S) is not Action.FINISH:
            pass
        counts = learner.counts()
        learner.close()
        counted = self._metrics[1:]
        seconds = [float(metrics["seconds"]) for metrics in counted]

        def share(name: str) -> float:
            spent = [float(metrics[f"training/{name}"]) * float(metrics["seconds"]) for metrics in counted]
            return sum(spent) / sum(seconds)

        return OutrunReport(
            parameters=self._run.layout.parameters,
            updates=config.updates,
            seconds_per_update=statistics.median(seconds),
            groups_stored=sum(counts.values()),
            groups_settled=sum(counts.values()) - counts.get("stored", 0),
            busy=share("busy"),
            publishing=share("publishing"),
            checkpoint=share("checkpoint"),
            waiting_groups=share("waiting_groups"),
            waiting_replay=share("waiting_replay"),
        )

    def _make_learner(self, loaded: LoadedModel) -> Learner:
        run, config = self._run, self._config
        scorer = TransformersScorer(PolicyModel(_model(config.seed).model, run.layout))
        return assemble_learner(
            LearnerParts(
                paths=self._paths,
                identity=run.key,
                manifest=run.manifest,
                run=run.run,
                training=loaded,
                layout=run.layout,
                replaying=ReplayTools(scorer, run.work),
                loss=LossPipeline.plain(build_loss("gepo_t")),
                config=LearnerConfig(
                    groups_per_update=config.groups_per_update,
                    updates=config.updates,
                    checkpoint_every=config.updates + 1,
                ),
                clock=SystemClock(),
                random_bytes=bytes,
                on_metrics=self._metrics.append,
                on_notice=lambda _: None,
                threads=torch.get_num_threads(),
            )
        )

    def _groups(self) -> list[bytes]:
        """Groups of version 0, from the volunteers in turns."""
        (raw,) = [raw for raw in self._port.sent if open_envelope(raw, now=None).kind is Kind.POLICY_MANIFEST]
        opened = open_envelope(raw, now=None)
        manifest = body_of(opened, PolicyManifest)
        sampler = TransformersSampler(PolicyModel(_model(self._config.seed).model, self._run.layout))
        # The published weights are rounded to the run's dtype; the volunteers sample with those.
        weights = chained_weights(self._paths.blobs, manifest)
        assert weights is not None, "the learner has just published it"
        sampler.swap(sampler.stage(weights, 0))
        volunteers = [identity_of(f"outrun {number}") for number in range(_VOLUNTEERS)]
        count = int(_AHEAD * self._config.updates * self._config.groups_per_update)
        return [
            self._group(sampler, volunteers[number % _VOLUNTEERS], number // _VOLUNTEERS, manifest, opened.digest)
            for number in range(count)
        ]

    def _group(
        self, sampler: TransformersSampler, volunteer: Identity, slot: int, manifest: PolicyManifest, policy: bytes
    ) -> bytes:
        work = self._run.work
        assignment = work.assign(beacon=manifest.beacon, peer=volunteer.public_key, slot=slot)
        made = sample_all(sampler, assignment.requests)
        group = work.pack(assignment, made, version=0, policy=policy, engine=sampler.engine_class, seconds=1.0)
        return seal(volunteer, group, run=self._run.run, now=SystemClock().now())


class _FedPort:
    """A network in memory: volunteers deliver their groups as long as few wait, and the learner's messages are kept."""

    addresses = ("/ip4/127.0.0.1/tcp/1/p2p/bench",)
    status = None

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self._groups: deque[bytes] = deque()
        self._waiting = 0
        self._woken = threading.Event()

    def feed(self, groups: list[bytes]) -> None:
        """Deliver these from now on."""
        self._groups.extend(groups)

    def send(self, message: control.ToNetwork) -> None:
        """See `NetworkPort.send`."""
        if not isinstance(message, signals.Publish):
            return
        self.sent.append(message.envelope)
        opened = open_envelope(message.envelope, now=None)
        if opened.kind is Kind.RECEIPTS:
            self._waiting -= len(body_of(opened, Receipts).receipts)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        """See `NetworkPort.poll`."""
        arrived = [self._groups.popleft() for _ in range(min(_AT_ONCE, len(self._groups), _WAITING - self._waiting))]
        self._waiting += len(arrived)
        if not arrived and timeout_s > 0.0:
            self._woken.wait(timeout_s)
        self._woken.clear()
        return [control.EnvelopeArrived(envelope) for envelope in arrived]

    def wake(self) -> None:
        """See `NetworkPort.wake`."""
        self._woken.set()

    def close(self) -> None:
        """Nothing to close."""


def _model(seed: int) -> LoadedModel:
    """A model of chain4's shape, but large enough for updates that take seconds."""
    tokenizer = tiny_model("chain4", seed=seed).tokenizer
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=_CONTEXT,
        n_embd=_WIDTH,
        n_layer=_LAYERS,
        n_head=_HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return LoadedModel(model=GPT2LMHeadModel(config).eval(), tokenizer=tokenizer)
