"""The learner as it runs: network in, verified batches, updates, published policies, receipts out.

A thin shell around the journal (what is promised), the intake (what comes in and is believed), the epochs (what is
due), the trainer (what is computed) and the publication (what goes out). Everything is written to the journal before it
is said to anyone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from p2prl.clock import Clock
from p2prl.disk_full import write_error
from p2prl.errors import require
from p2prl.learner.intake import Intake
from p2prl.learner.journal import Journal, StoredGroup
from p2prl.learner.loss_pipeline import LossPipeline
from p2prl.learner.policy_publisher import PolicyPublisher
from p2prl.learner.publish_interval import PublishInterval, PublishIntervalConfig
from p2prl.learner.published_policies import PublishedPolicies
from p2prl.learner.reference_policy import ReferenceConfig
from p2prl.learner.run_files import LearnerPaths, last_logged_step, newest_checkpoint, prune_checkpoints
from p2prl.learner.schedule import Action, Schedule, ScheduleConfig
from p2prl.learner.signing_sender import SigningSender
from p2prl.learner.staleness_buffer import RolloutBuffer
from p2prl.learner.trainer import OptimiserConfig, Trainer, TrainingGroup
from p2prl.learner.verification import Verification
from p2prl.models.engine_port import Engine
from p2prl.models.group_work import GroupWork
from p2prl.models.weight_layout import WeightLayout
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.patches.dead_band import widest_band_ulp
from p2prl.patches.words import FP32
from p2prl.protocol import ledger_chain, limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.rollout_group import RolloutGroup

_PENDING_PER_ROUND = 64
"""Groups verified in one round, so that messages are answered between rounds."""

_FAREWELL_S = 6.0
"""How long the learner stays after the last group arrived: twice the time in which those that lost it dial it again."""

_FAREWELL_AGAIN_S = 1.0
"""How often it repeats the end of the run meanwhile, for those that have just come back."""

_LONGEST_FAREWELL_S = 15.0
"""A swarm that never falls quiet does not keep the learner longer than this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerConfig:
    """How a learner trains and paces itself."""

    groups_per_update: int = 16
    """R: groups of one update."""
    updates: int = 200
    """Updates of the run; 0 goes on until stopped."""
    checkpoint_every: int = 10
    """Updates between checkpoints. Between them a crash replays recorded batches, which costs time, never work."""
    ready_updates: float = 1.5
    """Verified groups to keep ready, in updates' worth; more only makes them older."""
    chunk_pieces: int = 32
    """Pieces a policy's weights are cut into, so that volunteers relay while they receive."""
    publish: Literal["manifest", "auto"] = "manifest"
    """When versions come: as often as the run manifest says, or as measured times of updates and broadcasts ask, but
    never more often than that."""
    dead_band_ulp: int = 0
    """Words that moved at most so many ulp of their word type since they were last published are published as they
    were, for smaller patches; 0 publishes all. One ulp of bfloat16 is 8 of float16, 65536 of float32."""
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)

    def __post_init__(self) -> None:
        for name in ("groups_per_update", "checkpoint_every", "chunk_pieces"):
            require(name, value := getattr(self, name), value >= 1, "1 or more")
        require("updates", self.updates, self.updates >= 0, "0 or more")
        widest = widest_band_ulp(FP32)  # the run's own word type may allow less (`config.runs.open_run`)
        require("dead_band_ulp", self.dead_band_ulp, 0 <= self.dead_band_ulp <= widest, f"within 0..{widest}")
        # Below 1 an update's worth would never be ready, and the learner would wait for ever.
        require("ready_updates", self.ready_updates, 1.0 <= self.ready_updates <= 1000.0, "within 1..1000")


class Learner:
    """One run's learner."""

    def __init__(
        self,
        *,
        paths: LearnerPaths,
        identity: Identity,
        manifest: RunManifest,
        run: Digest,
        model: Any,
        tokenizer: Any,
        layout: WeightLayout,
        engine: Engine,
        work: GroupWork,
        estimator: LossPipeline,
        config: LearnerConfig,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        on_metrics: Callable[[dict[str, Any]], None],
        on_notice: Callable[[str], None],
        reference: ReferenceConfig | None = None,
    ) -> None:
        self._paths = paths
        self._manifest = manifest
        self._tokenizer = tokenizer
        self._config = config
        self._clock = clock
        self._on_metrics = on_metrics
        self._on_notice = on_notice
        self._journal = Journal(paths.journal)
        self._blobs = DiskBlobStore(paths.blobs)
        self._shelf = PublishedPolicies(self._blobs)
        self._buffer = RolloutBuffer(staleness_bound=manifest.staleness_bound)
        self._voice = SigningSender(identity, run, self._journal, clock)
        self._intake = Intake(
            journal=self._journal,
            shelf=self._shelf,
            verification=Verification(
                self._journal, self._shelf, work, engine, staleness_bound=manifest.staleness_bound
            ),
            buffer=self._buffer,
            voice=self._voice,
            clock=clock,
            on_verified=self._note_verified,
        )
        self._cadence = PublishInterval(
            PublishIntervalConfig(
                staleness_bound=manifest.staleness_bound,
                least=manifest.publish_every,
                most=max(manifest.publish_every, manifest.staleness_bound + 1),
            ),
            publish_every=manifest.publish_every,
        )
        self._publish_every = manifest.publish_every
        self._verified_at: dict[bytes, float] = {}
        self._publication = PolicyPublisher(
            journal=self._journal,
            blobs=self._blobs,
            shelf=self._shelf,
            layout=layout,
            voice=self._voice,
            staleness_bound=manifest.staleness_bound,
            chunk_pieces=config.chunk_pieces,
            dead_band_ulp=config.dead_band_ulp,
            clock=clock,
            random_bytes=random_bytes,
        )
        self._trainer = Trainer(
            model, estimator, config.optimiser, temperature=manifest.sampling.temperature, reference=reference
        )
        self._trust = estimator.trust
        self._stopping = False
        self._logged_step = last_logged_step(paths.metrics)
        self._updated_at = clock.now()
        self._epochs = self._resume()

    # --- life --------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Updates done."""
        return self._trainer.step

    @property
    def version(self) -> int:
        """Newest published version; −1 before the first."""
        newest = self._shelf.newest
        return -1 if newest is None else newest.manifest.version

    def counts(self) -> dict[str, int]:
        """Groups by state."""
        return self._journal.counts()

    def turned_away(self) -> dict[str, int]:
        """Groups that were not taken in since the start, by why."""
        return self._intake.turned_away()

    def stop(self) -> None:
        """Finish the update under way, keep everything, and return from `run`."""
        self._stopping = True

    def introduce(self, network: NetworkPort) -> None:
        """Tell a fresh node every policy a volunteer may still need. Runs at every (re)start of the network."""
        policies = self._journal.policies(from_step=self._trainer.step - self._manifest.staleness_bound)
        self._shelf.sweep(policies, besides=[file.blob.root for file in self._manifest.files])
        for raw in policies:
            network.send(control.Publish(raw))
        for raw in self._publication.head():
            network.send(control.Publish(raw))
        network.send(control.SetLedgerHeight(self._journal.height))
        network.send(control.Publish(self._voice.head(step=self.step, finished=self._epochs.finished)))

    def attach(self, network: NetworkPort) -> None:
        """Speak through this network from now on."""
        self._voice.attach(network)

    def run(self, network: NetworkPort, *, on_up: Callable[[tuple[str, ...]], None]) -> None:
        """Train until the run's updates are done or `stop` is called. `on_up` gets the dialable addresses."""
        self.attach(network)
        try:
            while not network.addresses and not self._stopping:
                self._listen(0.5)
            if network.addresses:
                on_up(network.addresses)
            while not self._stopping and self.turn(wait_s=0.2) is not Action.FINISH:
                pass
            self._checkpoint()
            if not self._stopping:
                self._say_goodbye()
        finally:
            network.close()
            self.close()

    def turn(self, *, wait_s: float) -> Action:
        """Answer messages, check groups, and do the one thing that is due. Waits only when nothing is."""
        action = self._epochs.next_action(len(self._buffer))
        idle = action is Action.COLLECT and not (self._room() and self._intake.has_unchecked())
        self._listen(wait_s if idle else 0.0)
        self._verify()
        if action is Action.PUBLISH:
            self._publish()
        elif action is Action.STEP:
            self._step()
        self._publication.refresh()
        return action

    def close(self) -> None:
        """Close the files; everything is already on disk."""
        self._journal.close()
        self._blobs.close()

    def _resume(self) -> Schedule:
        """Restore the checkpoint, replay the batches recorded after it, and put the shelf and the buffer back."""
        checkpoint = newest_checkpoint(self._paths.checkpoints)
        if checkpoint is not None:
            self._trainer.restore(checkpoint)
        first = self._trainer.step - self._manifest.staleness_bound
        if (founding := self._journal.policy_at(0)) is not None:
            self._shelf.recall_first(founding)
        for raw in self._journal.policies(from_step=first):
            self._shelf.add(raw)
        replayed = 0
        while (digests := self._journal.batch(self._trainer.step)) is not None:
            self._train(digests)
            replayed += 1
        if self.step:
            since = f"replayed {replayed} updates since the last checkpoint: " if replayed else ""
            self._on_notice(f"{since}resuming at step {self.step}")
        self._intake.refill_buffer()
        newest = self._shelf.newest
        config = ScheduleConfig(
            groups_per_update=self._config.groups_per_update,
            publish_every=self._manifest.publish_every,
            updates=self._config.updates,
        )
        return Schedule(config, step=self.step, published_step=None if newest is None else newest.manifest.step)

    # --- groups in ---------------------------------------------------------------------------------------------

    def _listen(self, timeout_s: float) -> None:
        """Take messages, and answer them."""
        envelopes: list[bytes] = []
        for message in self._voice.network.poll(timeout_s):
            match message:
                case control.EnvelopeArrived(envelope=raw):
                    envelopes.append(raw)
                case control.LedgerWanted(peer=peer, from_height=wanted):
                    entries = self._journal.entries(wanted, limits.MAX_LEDGER_ENTRIES_PER_REPLY)
                    self._voice.network.send(control.SendLedger(peer, wanted, ledger_chain.page_of(entries)))
                case control.Warned(message=text, remedy=remedy):
                    self._on_notice(f"{text}. {remedy}".strip())
                case _:
                    pass
        if envelopes and self._intake.receive(envelopes):
            self._voice.say_head(step=self.step, finished=self._epochs.finished)

    def _verify(self) -> None:
        """Check stored groups while fewer than wanted are ready."""
        if self._intake.check(min(_PENDING_PER_ROUND, self._room()), step=self.step):
            self._voice.say_head(step=self.step, finished=False)

    def _room(self) -> int:
        """Verified groups still wanted."""
        return max(0, int(self._config.ready_updates * self._config.groups_per_update) - len(self._buffer))

    def _settle_the_rest(self) -> None:
        """The run is over: every group that was taken in still gets its receipt."""
        while self._intake.check(_PENDING_PER_ROUND, step=self.step):
            # Never that it goes on: whoever hears no later head than this one would wait for a learner that has left.
            self._voice.say_head(step=self.step, finished=True)

    # --- updates -----------------------------------------------------------------------------------------------

    def _step(self) -> None:
        with self._journal.transaction():
            for stale in self._buffer.drop_stale(self.step):
                self._journal.unused(stale.digest)
                self._verified_at.pop(stale.digest, None)
            if len(self._buffer) < self._config.groups_per_update:
                return
            batch = self._buffer.take(self._config.groups_per_update)
            digests = [group.digest for group in batch]
            self._journal.begin_step(self.step, digests)
        self._train(digests)
        self._epochs.stepped()
        self._pace(digests)
        if self.step % self._config.checkpoint_every == 0:
            self._checkpoint()

    def _note_verified(self, group: StoredGroup, now: float) -> None:
        self._verified_at[group.digest] = now
        self._cadence.delivered(group.peer, group.version, now)

    def _pace(self, digests: Sequence[bytes]) -> None:
        """Follow what updates and broadcasts take, and change how often versions come where the run lets us."""
        now = self._clock.now()
        self._cadence.updated(now)
        for digest in digests:
            if (at := self._verified_at.pop(digest, None)) is not None:
                self._cadence.used(now - at)
        choice = self._cadence.choice
        if self._config.publish == "auto" and choice.publish_every != self._publish_every:
            self._publish_every = choice.publish_every
            self._epochs.repace(choice.publish_every)
            fits = "" if choice.feasible else "; the staleness bound leaves no room for more"
            self._on_notice(
                f"a version every {choice.publish_every} updates from now on: it takes {choice.broadcast_s:.0f} s to"
                f" reach the swarm, an update {choice.train_s:.1f} s{fits}"
            )

    def _train(self, digests: Sequence[bytes]) -> None:
        stored = self._journal.groups(digests)
        groups = [self._training_group(group) for group in stored]
        metrics: dict[str, Any] = self._trainer.update(groups)
        now = self._clock.now()
        metrics |= {"seconds": now - self._updated_at, "time": now, "groups": len(stored), "version": self.version}
        metrics |= {"peers": len({group.peer for group in stored}), "ready_groups": len(self._buffer)}
        metrics |= {f"turned_away/{why}": count for why, count in self._intake.turned_away().items()}
        metrics |= self._publication.figures | {"publish_every": self._publish_every}
        metrics["staleness"] = sorted(group.staleness for group in groups)
        self._updated_at = now
        if self.step > self._logged_step:
            try:
                with self._paths.metrics.open("a") as file:
                    file.write(json.dumps(metrics, sort_keys=True) + "\n")
            except OSError as error:
                raise write_error(error, self._paths.metrics) from error
            self._logged_step = self.step
            self._on_metrics(metrics)
            for notice in self._trainer.notices:
                self._on_notice(f"update {self.step}: {notice}")

    def _training_group(self, stored: StoredGroup) -> TrainingGroup:
        group = body_of(open_envelope(stored.raw, now=None), RolloutGroup)
        policy = self._shelf.get(group.version, group.policy)
        assert policy is not None, "a batch holds only groups of published policies"
        completions = tuple(tuple(np.frombuffer(c.tokens, dtype="<u4").tolist()) for c in group.completions)
        behavior = np.frombuffer(stored.behavior, dtype="<f4")
        splits = np.split(behavior, np.cumsum([len(ids) for ids in completions])[:-1])
        return TrainingGroup(
            prompt_ids=tuple(np.frombuffer(group.prompt, dtype="<u4").tolist()),
            completions=completions,
            behavior_logprobs=tuple(tuple(part.tolist()) for part in splits),
            rewards=tuple(np.frombuffer(stored.rewards, dtype="<f4").tolist()),
            staleness=self.step - policy.manifest.step,
            trust=self._trust.trust(
                self._journal.trained_on(stored.peer, before_step=self.step, most=self._trust.probation_groups)
            ),
        )

    def _checkpoint(self) -> None:
        target = self._paths.checkpoint(self.step)
        if target.exists():
            return
        self._paths.checkpoints.mkdir(parents=True, exist_ok=True)
        self._trainer.save(target, self._tokenizer)
        oldest_kept = prune_checkpoints(self._paths.checkpoints)
        with self._journal.transaction():
            self._journal.forget_batches_before(oldest_kept)

    # --- messages out ------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        self._publication.publish(self._trainer.model, step=self.step)
        self._epochs.published()
        self._cadence.published(self.version, self._clock.now())

    def _say_goodbye(self) -> None:
        """Tell everyone the run is over; stay until what was still on its way has its receipt."""
        self._voice.say_head(step=self.step, finished=True)
        began = said_at = quiet_since = self._clock.now()
        while (now := self._clock.now()) - quiet_since < _FAREWELL_S and now - began < _LONGEST_FAREWELL_S:
            self._listen(0.2)
            if now - said_at >= _FAREWELL_AGAIN_S:
                said_at = now
                self._voice.say_head(step=self.step, finished=True)
            if self._intake.has_unchecked():
                self._settle_the_rest()
                quiet_since = now
