"""Build a learner from its parts and resume its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from p2prl.clock import Clock
from p2prl.learner.evaluation.evaluation_plan import EvaluationConfig
from p2prl.learner.evaluation.evaluations import Evaluations, EvaluationTools
from p2prl.learner.following.followed import Followed
from p2prl.learner.intake.admission import Admission, DecodedGroups
from p2prl.learner.intake.dynamic_sampling import DynamicSampling
from p2prl.learner.intake.group_checks import GroupChecks
from p2prl.learner.intake.inbox import Inbox
from p2prl.learner.intake.intake import Intake
from p2prl.learner.intake.owners import Owners
from p2prl.learner.intake.peer_standings import PeerStandings
from p2prl.learner.intake.replay_backlog import BacklogConfig, ReplayBacklog
from p2prl.learner.intake.replaying import Replayer
from p2prl.learner.intake.rollout_buffer import RolloutBuffer
from p2prl.learner.intake.settlement import Settlement
from p2prl.learner.intake.slot_prices import SlotPrices, slots_with_work
from p2prl.learner.intake.verdict_checks import VerdictIntake
from p2prl.learner.learner_config import LearnerConfig
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.learner.publishing.policy_publisher import PolicyPublisher
from p2prl.learner.service import Learner
from p2prl.learner.shutdown import Shutdown
from p2prl.learner.signing_sender import SigningSender
from p2prl.learner.standby_orders import StandbyOrders
from p2prl.learner.storage import LearnerStorage
from p2prl.learner.timing.live_forecast import Forecaster
from p2prl.learner.timing.next_update import SAMPLING_SHARE, Pacing, Schedule, ScheduleConfig, pause_s
from p2prl.learner.timing.publish_interval import PublishInterval, PublishIntervalConfig
from p2prl.learner.timing.stages import InlineStage, Stage, ThreadStage
from p2prl.learner.timing.standby import StandbyChoice
from p2prl.learner.timing.training_stage import TrainingStage
from p2prl.learner.training.checkpoints import newest_checkpoint_step
from p2prl.learner.training.local_update_engine import LocalEngine, make_trainer
from p2prl.learner.training.loss_pipeline import LossPipeline
from p2prl.learner.training.memory_plan import MemoryPlan
from p2prl.learner.training.metrics_log import MetricsLog
from p2prl.learner.training.micro_batch_log import DEFAULT_RULE, MicroBatchLog
from p2prl.learner.training.optimizer_step import StepMemory, Trainer
from p2prl.learner.training.preferences import Preferences
from p2prl.learner.training.reference_policy import ReferenceConfig
from p2prl.learner.training.update_engine import EngineMaker
from p2prl.learner.update import Training
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.groups.group_work import ReplayTools
from p2prl.models.hardware.device_choice import use_threads
from p2prl.models.weights.layout import WeightLayout
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.limits import MAX_ON_STANDBY
from p2prl.protocol.manifests import RunManifest


@dataclass(frozen=True, kw_only=True, slots=True)
class Judges:
    """The parts that decide which groups are credited and trained on. No setting names them: only simulations of a
    learner that does without replace them."""

    admission: type[Admission] = Admission
    replayer: type[Replayer] = Replayer
    prices: type[SlotPrices] = SlotPrices
    standings: type[PeerStandings] = PeerStandings


_GROUPS_PER_CHECK = 64
"""Groups checked at once, so that messages are answered in between."""


@dataclass(frozen=True, kw_only=True)
class LearnerParts:
    """Inputs of a learner. It has this many fields because it lists each input once."""

    paths: LearnerPaths
    identity: Identity
    manifest: RunManifest
    run: Digest
    """Digest of the run manifest's envelope."""
    training: LoadedModel
    """The model to train, with the weights of the newest checkpoint, in float32."""
    layout: WeightLayout
    """Order and word type in which weights are published."""
    replaying: ReplayTools
    """A scorer to replay groups with, and the run's slot rules."""
    loss: LossPipeline
    reference: ReferenceConfig | None = None
    """Settings of the reference policy; None for a loss without one."""
    preferences: Preferences | None = None
    """The run owner's pairs of preferences; None without any."""
    memory: MemoryPlan = field(default_factory=lambda: MemoryPlan(rule=DEFAULT_RULE, most_tokens=DEFAULT_RULE.tokens))
    """Number types of the training model, which must be held in them, and its micro-batches."""
    engine: EngineMaker = LocalEngine
    """Makes what the training model is computed by."""
    config: LearnerConfig
    clock: Clock
    random_bytes: Callable[[int], bytes]
    """Draws beacons."""
    on_metrics: Callable[[dict[str, object]], None]
    """Gets the metrics of every update."""
    on_notice: Callable[[str], None]
    """Gets messages for the user."""
    evaluation: EvaluationTools | None = None
    """What published versions are evaluated with; None for no evaluations."""
    evaluate: EvaluationConfig = field(default_factory=EvaluationConfig)
    """How often, and how much of the time."""
    judges: Judges = field(default_factory=Judges)
    threads: int = 0
    """CPU threads of the training thread, as torch counts them; 0 runs training and replay in the caller's thread."""


def assemble_learner(parts: LearnerParts) -> Learner:
    """The learner of a run, resumed to the exact step it had reached."""
    manifest, config, clock = parts.manifest, parts.config, parts.clock
    storage = LearnerStorage(parts.paths, manifest)
    owners = Owners(storage.journal, clock)
    judges = parts.judges
    prices = judges.prices(
        storage.journal,
        secret=parts.identity.secret_seed,
        has_work=slots_with_work(parts.replaying.work, storage),
        identity_of=owners.identity_of,
    )
    standings = judges.standings(clock, identity_of=owners.identity_of, charged=prices.charged)
    standings.restore(storage.journal.groups.history(), storage.journal.forgeries.times())
    buffer = RolloutBuffer(
        staleness_bound=manifest.staleness_bound,
        ready_target=config.ready_groups,
        contributor=standings.contributor,
        sampling=DynamicSampling(config.most_left_out, masks_truncated=parts.loss.masks_truncated),
    )
    sender = SigningSender(parts.identity, parts.run, storage.journal, clock)
    replay_stage, training_stage, publish_stage, copy_stage = _stages(parts.threads, sender)
    followed = Followed(storage, clock, copy_stage, parts.on_notice)
    sender.hold_by(followed)
    training = _training(parts, storage, buffer, TrainingStage(training_stage))
    pacing = _pacing(parts, storage, buffer, step=training.step)
    choice = StandbyChoice(groups_per_update=config.groups_per_update, most=MAX_ON_STANDBY)
    standby = StandbyOrders(choice, sender, clock)
    decoded, backlog = DecodedGroups(), _backlog(parts, standings)
    verdicts = VerdictIntake(storage.journal, sender, clock)
    intake = Intake(storage, decoded, buffer, backlog, prices, owners, standings, sender, clock, verdicts)
    intake.refill()

    def on_verified(peer: bytes, version: int, trains: bool) -> None:
        pacing.group_verified(peer, version, trains=trains)
        standby.group_verified(peer)

    settlement = Settlement(
        storage, buffer, prices, owners, sender, clock, verdicts, baselines=parts.replaying.baselines,
        on_verified=on_verified,
    )  # fmt: skip
    # In virtual time nothing is measured, so that a simulation depends on its seed alone.
    replaying = parts.replaying
    replayer = judges.replayer(replaying, timer=perf_counter) if parts.threads else judges.replayer(replaying)
    checks = GroupChecks(
        journal=storage.journal,
        backlog=backlog,
        buffer=buffer,
        admission=judges.admission(storage, decoded),
        replayer=replayer,
        settlement=settlement,
        standings=standings,
        stage=replay_stage,
        evaluations=_evaluations(parts, storage, replayer),
    )
    inbox = Inbox(intake, storage.journal, sender, parts.on_notice, standby.offered, standby.link_lost, followed)
    publisher = _publisher(parts, storage, sender, publish_stage)
    followed.wait_while(lambda: publisher.busy)
    return Learner(
        storage=storage,
        sender=sender,
        inbox=inbox,
        checks=checks,
        training=training,
        pacing=pacing,
        standby=standby,
        publisher=publisher,
        followed=followed,
        shutdown=Shutdown(inbox, checks, sender, storage.journal.groups, clock, parts.on_notice),
    )


def _training(parts: LearnerParts, storage: LearnerStorage, buffer: RolloutBuffer, stage: TrainingStage) -> Training:
    """Training, resumed to the exact step it had reached."""
    rules = MicroBatchLog(parts.paths.micro_batches)
    trainer = _trainer(parts, rules)
    log = MetricsLog(parts.paths.metrics, parts.clock, on_metrics=parts.on_metrics, on_notice=parts.on_notice)
    training = Training(
        trainer=trainer,
        tokenizer=parts.training.tokenizer,
        probation=parts.loss.probation,
        storage=storage,
        buffer=buffer,
        log=log,
        config=parts.config,
        stage=stage,
    )
    checkpoint_step = newest_checkpoint_step(parts.paths.checkpoints)
    if rules.begin(parts.memory, checkpoint_step=checkpoint_step, completed=log.logged_step):
        parts.on_notice(
            f"another plan of ranks than before: updates since step {checkpoint_step} are computed again and differ"
            " in the last bits"
        )
    training.resume(parts.on_notice)
    if (rule := rules.at(trainer.step)) != parts.memory.rule:
        parts.on_notice(f"micro-batches of up to {rule.text}, as in this run before")
    return training


def _trainer(parts: LearnerParts, rules: MicroBatchLog) -> Trainer:
    return make_trainer(
        parts.training.model,
        parts.loss,
        parts.config.optimizer,
        temperature=parts.manifest.sampling.temperature,
        reference=parts.reference,
        memory=StepMemory(precision=parts.memory.precision, states=parts.memory.states, rules=rules),
        engine=parts.engine,
        preferences=parts.preferences,
    )


def _publisher(parts: LearnerParts, storage: LearnerStorage, sender: SigningSender, stage: Stage) -> PolicyPublisher:
    return PolicyPublisher(
        storage=storage,
        layout=parts.layout,
        sender=sender,
        config=parts.config,
        clock=parts.clock,
        random_bytes=parts.random_bytes,
        stage=stage,
    )


def _evaluations(parts: LearnerParts, storage: LearnerStorage, replayer: Replayer) -> Evaluations | None:
    if parts.evaluation is None or not parts.evaluate.every:
        return None
    return Evaluations(
        tools=parts.evaluation,
        config=parts.evaluate,
        storage=storage,
        policy=parts.evaluation.policy or replayer.policy,
        clock=parts.clock,
        on_notice=parts.on_notice,
    )


def _stages(threads: int, sender: SigningSender) -> tuple[Stage, Stage, Stage, Stage]:
    """The stages of replay, of training, of publishing, and of copies for a standby learner.

    Training gets all of torch's threads and replay half: replay costs a fraction of an update and waits for groups most
    of the time, so reserving cores for it would leave them idle, and half keeps it from taking more than its share
    while both compute. Publishing computes without torch. Training starts last because some
    libraries have one setting for the whole process.
    """
    if not threads:
        return InlineStage(), InlineStage(), InlineStage(), InlineStage()
    shares = {
        "p2prl-following": 1,
        "p2prl-publishing": 1,
        "p2prl-replay": max(1, threads // 2),
        "p2prl-training": threads,
    }
    following, publishing, replay, training = (
        ThreadStage(name, on_start=partial(use_threads, share), on_done=sender.wake) for name, share in shares.items()
    )
    return replay, training, publishing, following


def _backlog(parts: LearnerParts, standings: PeerStandings) -> ReplayBacklog:
    """The backlog. Batches of a thread are small, so that an update's worth of groups is ready soon."""
    config = parts.config
    if parts.threads:
        backlog = BacklogConfig(
            batch_groups=min(_GROUPS_PER_CHECK, config.groups_per_update),
            surplus_share=config.replay_budget,
            newest_first=True,
            in_time=int((1.0 - SAMPLING_SHARE) * parts.manifest.staleness_bound * config.groups_per_update),
        )
    else:
        backlog = BacklogConfig(batch_groups=_GROUPS_PER_CHECK, surplus_share=0.0, newest_first=False)
    return ReplayBacklog(backlog, rank=standings.rank, author=standings.identity)


def _pacing(parts: LearnerParts, storage: LearnerStorage, buffer: RolloutBuffer, *, step: int) -> Pacing:
    manifest, config = parts.manifest, parts.config
    newest = storage.published.newest
    schedule = Schedule(
        ScheduleConfig(
            groups_per_update=config.groups_per_update, publish_every=manifest.publish_every, updates=config.updates
        ),
        step=step,
        published_step=None if newest is None else newest.manifest.step,
    )
    interval = PublishInterval(
        PublishIntervalConfig(
            staleness_bound=manifest.staleness_bound,
            least=manifest.publish_every,
            most=max(manifest.publish_every, manifest.staleness_bound + 1),
        ),
        publish_every=manifest.publish_every,
    )

    def pause(update_s: float) -> float:
        bound, limit = manifest.staleness_bound, config.pace_limit
        return pause_s(update_s, sampling_s=buffer.sampling_s, staleness_bound=bound, limit=limit)

    return Pacing(
        schedule,
        interval,
        Forecaster(groups_per_update=config.groups_per_update),
        parts.clock,
        automatic=config.publish == "auto",
        pause=pause,
        on_notice=parts.on_notice,
    )
