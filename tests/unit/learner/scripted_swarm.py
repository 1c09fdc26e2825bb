"""A learner driven turn by turn: scripted volunteers, a recording network, a controlled clock, and kills."""

from __future__ import annotations

import functools
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from p2prl.algorithms.loss_registry import build_loss
from p2prl.learner.assembly import LearnerParts, assemble_learner
from p2prl.learner.evaluation.evaluation_plan import EvaluationConfig
from p2prl.learner.evaluation.evaluations import EvaluationTools
from p2prl.learner.learner_config import LearnerConfig
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.learner.service import Learner
from p2prl.learner.timing.next_update import Action
from p2prl.learner.training.loss_pipeline import LossPipeline, LossPipelineConfig
from p2prl.learner.training.memory_config import weight_dtype
from p2prl.learner.training.memory_plan import MemoryPlan
from p2prl.learner.training.micro_batch_log import DEFAULT_RULE
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.models.base_model.pretrained import load_pretrained
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.evaluation.pass_evaluation import evaluation_sets
from p2prl.models.groups.group_work import GroupWork, ReplayTools
from p2prl.models.rewards.run_reward import ModelJudge
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.small_models.warm_start import WarmstartConfig, warm_start
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.weights.layout import TORCH_DTYPES, flatten
from p2prl.net.process import control
from p2prl.protocol.envelope import body_of, open_envelope, seal
from p2prl.protocol.kinds import Kind
from p2prl.protocol.manifests import PolicyManifest
from p2prl.swarm import signals
from p2prl.tasks.chain4 import demonstration
from tests.unit.learner.small_run import NOW, SmallRun, identity

PEERS = (identity("one"), identity("two"))
UPDATES = 5
THREAD_WAIT_S = 20.0
"""Longest wait for a thread, far longer than any job of these tests."""


class TickingClock:
    """Advances, but never past a millisecond, so that signatures, and so all slot seeds, depend only on the run."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def now(self) -> float:
        return NOW + next(self._ticks) * 1e-6


class RecordingPort:
    """A network port that delivers a test's messages and records the learner's."""

    addresses = ("/ip4/127.0.0.1/tcp/1/p2p/x",)
    status = None

    def __init__(self) -> None:
        self.inbox: list[control.FromNetwork] = []
        self.sent: list[bytes] = []
        self.pages: list[tuple[bytes, ...]] = []

    def send(self, message: control.ToNetwork) -> None:
        if isinstance(message, signals.Publish):
            self.sent.append(message.envelope)
        elif isinstance(message, signals.SendLedger):
            self.pages.append(message.entries)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        messages, self.inbox = self.inbox, []
        return messages

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass

    def bodies(self, kind: Kind) -> list[Any]:
        return [opened.body for raw in self.sent if (opened := open_envelope(raw, now=None)).kind is kind]


class WaitingPort(RecordingPort):
    """A port whose polls wait until they are woken."""

    def __init__(self) -> None:
        super().__init__()
        self.woken = threading.Event()

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        if not self.inbox and timeout_s > 0:
            assert self.woken.wait(timeout_s), "nothing happened"
        self.woken.clear()
        return super().poll(timeout_s)

    def wake(self) -> None:
        self.woken.set()


@functools.cache
def _warm_weights() -> Any:
    """Weights that sometimes answer a prompt correctly: without any reward there is no gradient to test with."""
    loaded = tiny_model("chain4", seed=1)
    warm_start(loaded, demonstration, seed=1, config=WarmstartConfig(steps=80))
    return loaded.model.state_dict()


def make_learner(
    small_run: SmallRun,
    *,
    around: LossPipelineConfig | None = None,
    memory: MemoryPlan | None = None,
    on_notice: Callable[[str], None] = lambda _: None,
    threads: int = 0,
    evaluate: EvaluationConfig | None = None,
    reward_model: ModelJudge | None = None,
    **changes: Any,
) -> Learner:
    """The run's learner, as a fresh process would build it."""
    checkpoints = sorted((small_run.directory / "checkpoints").glob("step-*"))
    memory = memory or MemoryPlan(rule=DEFAULT_RULE, most_tokens=DEFAULT_RULE.tokens)
    held_in = weight_dtype(memory.precision)
    training = (
        load_pretrained(str(checkpoints[-1]), dtype=held_in) if checkpoints else tiny_model(small_run.model, seed=1)
    )
    if not checkpoints:
        if small_run.model == "chain4":
            training.model.load_state_dict(_warm_weights())
        training.model.to(TORCH_DTYPES[held_in])
    replaying = tiny_model(small_run.model, seed=1)
    codec = TextCodec(replaying.tokenizer, replaying.model)
    work = GroupWork(small_run.manifest, small_run.run, codec, reward_model=reward_model)
    policy = PolicyModel(replaying.model, small_run.layout)
    config: dict[str, Any] = {
        "groups_per_update": 2,
        "updates": UPDATES,
        "checkpoint_every": 3,
        "optimizer": OptimizerConfig(learning_rate=1e-2, warmup_updates=1),
    } | changes
    return assemble_learner(
        LearnerParts(
            paths=LearnerPaths(small_run.directory),
            identity=small_run.learner,
            manifest=small_run.manifest,
            run=small_run.run,
            training=training,
            layout=small_run.layout,
            replaying=ReplayTools(TransformersScorer(policy), work),
            loss=LossPipeline(around or LossPipelineConfig(objective=build_loss("gepo_t"))),
            memory=memory,
            config=LearnerConfig(**config),
            clock=TickingClock(),
            random_bytes=lambda count: bytes([next(small_run.beacons)]) * count,
            on_metrics=lambda _: None,
            on_notice=on_notice,
            threads=threads,
            evaluation=None if evaluate is None else evaluation_tools(small_run, evaluate, policy, work),
            evaluate=evaluate or EvaluationConfig(),
        )
    )


def evaluation_tools(
    small_run: SmallRun, config: EvaluationConfig, policy: PolicyModel, work: GroupWork
) -> EvaluationTools:
    """What a learner measures versions with, on the replay's own model."""
    sets = evaluation_sets(work, small_run.manifest, small_run.run, prompts=config.prompts, samples=config.samples)
    return EvaluationTools(sampler=TransformersSampler(policy), work=work, sets=sets)


class ScriptedSwarm:
    """A learner that may be killed, and volunteers that deliver one group per update and peer of every version."""

    wait_s = 0.0
    turns = 60

    def __init__(self, small_run: SmallRun, build: Callable[[], Learner] | None = None) -> None:
        self.small_run = small_run
        self._build = build or (lambda: make_learner(small_run))
        self.port = RecordingPort()
        self.learner = self._build()
        self.learner.attach(self.port)
        self.sampled: set[int] = set()
        self.actions: list[Action] = []

    def restart(self) -> None:
        self.learner.close()
        self.learner = self._build()
        self.learner.attach(self.port)
        self.learner.introduce(self.port)

    def turn(self) -> Action:
        for raw in list(self.port.sent):
            opened = open_envelope(raw, now=None)
            if opened.kind is Kind.POLICY_MANIFEST:
                policy = body_of(opened, PolicyManifest)
                if policy.version not in self.sampled:
                    self.sampled.add(policy.version)
                    self._sample(raw)
        self.actions.append(self.learner.turn(wait_s=self.wait_s))
        return self.actions[-1]

    def _sample(self, raw: bytes) -> None:
        run = self.small_run
        policy = run.published.add(raw)
        every = run.manifest.publish_every
        first = every * policy.manifest.version
        for peer, slot in itertools.product(PEERS, range(first, first + every)):
            self.deliver(seal(peer, run.group(policy, peer, slot), run=run.run, now=NOW))

    def deliver(self, envelope: bytes) -> None:
        """Put an envelope into the learner's inbox."""
        self.port.inbox.append(control.EnvelopeArrived(envelope))

    def finish(self) -> None:
        """Take turns until the run's updates are done."""
        for number in itertools.count():
            assert number < self.turns, "the run did not end"
            if self.turn() is Action.FINISH:
                return

    def weights(self) -> bytes:
        return bytes(flatten(self.learner.model, self.small_run.layout))


class ThreadedSwarm(ScriptedSwarm):
    """A scripted swarm around a learner with threads."""

    wait_s = THREAD_WAIT_S
    turns = 300

    def __init__(self, small_run: SmallRun, **changes: Any) -> None:
        super().__init__(small_run, lambda: make_learner(small_run, threads=1, **changes))
        self.port = WaitingPort()
        self.learner.attach(self.port)


class KilledError(Exception):
    """Simulated SIGKILL: nothing after it runs."""


def run_through(
    small_run: SmallRun,
    kill: int | None,
    *,
    within_update: bool = False,
    build: Callable[[SmallRun], Learner] = make_learner,
) -> tuple[bytes, ScriptedSwarm, int]:
    """Run to the end, killed before turn `kill`, or within it between the batch's record and its update."""
    swarm = ScriptedSwarm(small_run, lambda: build(small_run))
    for number in itertools.count():
        assert number < 60, "the run did not end"
        if number == kill and within_update:

            def die(*_: object) -> None:
                raise KilledError

            swarm.learner._training.step_of = die  # type: ignore[method-assign,assignment]
            with suppress(KilledError):
                swarm.turn()
            swarm.restart()
        elif number == kill:
            swarm.restart()
        if swarm.turn() is Action.FINISH:
            weights = swarm.weights()
            swarm.learner.close()
            return weights, swarm, number
    raise AssertionError


@contextmanager
def fresh_runs(directory: Path) -> Iterator[Callable[[str], SmallRun]]:
    """Small runs by name, each with its journal closed: the learner under test owns it."""
    made: list[SmallRun] = []

    def make(name: str) -> SmallRun:
        small_run = SmallRun(directory / name, group_size=4)
        small_run.journal.close()
        made.append(small_run)
        return small_run

    yield make
    for small_run in made:
        small_run.blobs.close()


def metrics_lines(small_run: SmallRun) -> list[dict[str, Any]]:
    """The metrics log, one object per line."""
    return [json.loads(line) for line in (small_run.directory / "metrics.jsonl").read_text().splitlines()]
