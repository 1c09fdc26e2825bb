"""A swarm with its real roles in one thread: learner and volunteers on virtual time.

`Learner`, `Volunteer`, `Node` and everything below them are the classes that run over sockets; only the network, the
clock and the randomness are replaced. Computation itself takes no virtual time: an update takes `step_seconds`, a
batch of slots `sample_seconds`, a replay as long as `replayed_tokens_s` says, and the results are sent when that time
has passed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2prl.algorithms.loss_registry import build_loss
from p2prl.client.next_action import AgentConfig, Sample
from p2prl.client.service import Volunteer, VolunteerConfig
from p2prl.learner.assembly import Judges, LearnerParts, assemble_learner
from p2prl.learner.learner_config import LearnerConfig
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.learner.published_policies import versions_kept
from p2prl.learner.service import Learner
from p2prl.learner.timing.next_update import Action
from p2prl.learner.training.loss_pipeline import LossPipeline
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.groups.group_work import ReplayTools, SamplingTools
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.run_preparation import Prepare, RunPreparation
from p2prl.net.storage.chain_blobs import ChainBlobs, WorkerBlobs
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.kinds import Kind, Role
from p2prl.sim.costs import CostMeter, Tally, links_of
from p2prl.sim.link_conditions import LinkConditions, parse_delay, slow_envelopes
from p2prl.sim.machines import identity_of
from p2prl.sim.shared_decoding import SharedDecoding
from p2prl.sim.shared_engine import SharedScorer
from p2prl.sim.simulated_port import SimulatedPort
from p2prl.sim.simulated_run import SimulatedRun
from p2prl.sim.swarm_config import SwarmConfig, SwarmResult, percentiles, schedule_faults
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig

_JOINED_S = 5.0
"""Time in which volunteers that come together have joined."""


@dataclass(slots=True)
class _VolunteerHost:
    """One simulated volunteer across crashes: disk and port persist, the role is rebuilt at each boot."""

    identity: Identity
    number: int
    port: SimulatedPort
    blobs: DiskBlobStore
    role: Volunteer


class Swarm:
    """A learner and its volunteers.

    More than twelve attributes, because all machines share what each would compute alike.
    """

    idle_turn_s = 5.0
    """Virtual seconds between two turns of an idle role. Over sockets a message wakes it and .2 s are the longest wait;
    a shorter wait costs a simulation more turns."""

    def __init__(self, config: SwarmConfig, loaded: LoadedModel, directory: Path) -> None:
        """`loaded` is the initial policy; `directory` takes journals, spools and published weights."""
        self._config = config
        self._directory = directory
        groups_delayed = slow_envelopes(Kind.ROLLOUT_GROUP, parse_delay(config.delay))
        self.network = VirtualNetwork(config.seed, links=LinkConditions(loss=config.loss), delay=groups_delayed)
        self._rng = random.Random(f"swarm/{config.seed}")  # noqa: S311 - simulated, not secret
        self._run = SimulatedRun.of(
            loaded,
            staleness_bound=config.staleness_bound,
            publish_every=config.publish_every,
            seed=config.seed,
            task=config.task,
        )
        self._tally = Tally(self._run.key.peer_id)
        self._decoding = SharedDecoding()
        self._metrics: list[dict[str, Any]] = []
        self._finished = False
        self._counts: dict[str, int] = {}
        self._volunteers: dict[PeerId, _VolunteerHost] = {}
        self._scorer = SharedScorer(self._run.model)
        self._learner = self._start_learner()
        for number in range(config.volunteers):
            self._start_volunteer(number)
        self._schedule_faults()

    def run(self, *, on_progress: Callable[[float], None]) -> SwarmResult:
        """Advance virtual time until the learner's updates are done."""
        before, meter = self._run.reward_now(), CostMeter()
        self.network.run_for(_JOINED_S)
        meter.joined(self.network.elapsed)
        while not self._finished and self.network.elapsed < self._config.max_virtual_s:
            self.network.run_for(30.0)
            on_progress(len(self._metrics) / self._config.updates)
        caught_up = self._await_everyone()
        costs = meter.costs(self._config.volunteers, self.network.elapsed)
        self._learner.close()
        for volunteer in self._volunteers.values():
            volunteer.role.close()
        for volunteer in self._volunteers.values():
            volunteer.blobs.close()
        staleness = sorted(age for metrics in self._metrics for age in metrics["staleness"])
        counts = self._counts
        fetched = [self.network.node(peer).download_stats for peer in self._volunteers if self.network.is_up(peer)]
        return SwarmResult(
            trace_hash=self.network.trace,
            reward_before=before,
            reward_after=self._run.reward_now(),
            updates=len(self._metrics),
            virtual_s=self.network.elapsed,
            messages=self.network.counters.frames,
            bytes=self.network.counters.bytes,
            staleness=percentiles(staleness),
            groups_verified=sum(counts.get(state, 0) for state in ("verified", "used", "unused")),
            groups_rejected=counts.get("rejected", 0),
            patch_bytes=sum(stats.patch_bytes for stats in fetched),
            whole_bytes=sum(stats.full_bytes for stats in fetched),
            brought_bytes=sum(stats.version_bytes for stats in fetched),
            caught_up_s=caught_up,
            links=links_of(self.network, self._volunteers),
            groups_lost=self._tally.groups_lost(self.network.now),
            t95_s=self._tally.t95_s(self._config.volunteers),
            costs=costs,
        )

    @property
    def simulated(self) -> SimulatedRun:
        """The run that the swarm works on."""
        return self._run

    # --- roles -------------------------------------------------------------------------------------------------

    def _start_learner(self) -> Learner:
        config, run = self._config, self._run
        blobs = ChainBlobs(self._directory / "learner" / "blobs")
        for file in run.manifest.files:
            blobs.add(file.blob, run.files[file.name])
        learner = assemble_learner(
            LearnerParts(
                paths=LearnerPaths(self._directory / "learner"),
                identity=run.key,
                manifest=run.manifest,
                run=run.run,
                training=run.loaded,
                layout=run.layout,
                replaying=ReplayTools(self._scorer, run.work),
                loss=LossPipeline.plain(build_loss("gepo_t")),
                config=LearnerConfig(
                    groups_per_update=config.groups_per_update,
                    updates=config.updates,
                    checkpoint_every=max(1, config.updates),
                ),
                clock=self.network.loop_clock,
                random_bytes=random.Random(f"beacon/{config.seed}").randbytes,  # noqa: S311 - simulated
                on_metrics=self._metrics.append,
                on_notice=lambda _: None,
                judges=self._judges(),
            )
        )
        port = self._host(run.key, Role.LEARNER, blobs, versions_kept(run.manifest))
        learner.attach(port)
        self._turns(port, lambda: self._learner_turn(learner))
        return learner

    def _judges(self) -> Judges:
        """What decides on arriving groups."""
        return Judges()

    def _learner_turn(self, learner: Learner) -> float:
        if self._finished:
            return self.idle_turn_s
        before = self._scorer.replayed_tokens
        action = learner.turn(wait_s=0.0)
        self._counts = learner.counts()
        replay_s = (self._scorer.replayed_tokens - before) / self._config.replayed_tokens_s
        if action is Action.FINISH:
            self._finished = True
        if action is Action.STEP:
            return self._config.step_seconds + replay_s
        return replay_s if action is Action.PUBLISH or replay_s else self.idle_turn_s

    def _start_volunteer(self, number: int) -> None:
        identity = identity_of(f"volunteer {self._config.seed}/{number}")
        pace = self._config.sample_seconds * 2.0 ** (2 * self._rng.random() - 1)
        blobs = WorkerBlobs(self._directory / f"volunteer-{number}" / "blobs")
        port = self._host(identity, Role.VOLUNTEER, blobs, keep_versions=4)
        role = self._make_volunteer(identity, number)
        role.attach(self._network_of(number, identity, port))
        host = self._volunteers[identity.peer_id] = _VolunteerHost(identity, number, port, blobs, role)
        self._turns(port, lambda: self._volunteer_turn(host, pace))

    def _make_volunteer(self, identity: Identity, number: int) -> Volunteer:
        return Volunteer(
            identity=identity,
            run=self._run.run,
            spool_path=self._directory / f"volunteer-{number}" / "spool.db",
            config=self._volunteer_config(number),
            clock=self.network.loop_clock,
            preparation=RunPreparation(self._prepare_of(number), lambda *_: None),
            on_progress=lambda _: None,
            on_notice=lambda _: None,
        )

    def _volunteer_config(self, number: int) -> VolunteerConfig:
        """Settings of a volunteer. Delayed groups are neither lost nor refused: they are not resent, and do not block
        anyone."""
        del number
        agent = AgentConfig(slots_in_flight=2, backlog=1_000_000)
        return VolunteerConfig(redeliver_s=4 * 3600.0, agent=agent)

    def _network_of(self, number: int, identity: Identity, port: SimulatedPort) -> NetworkPort:
        """What a volunteer sends and receives through."""
        del number, identity
        return port

    def _prepare_of(self, number: int) -> Prepare[SamplingTools]:
        """How a volunteer prepares its sampler."""
        del number
        return self._run.prepare

    def _volunteer_turn(self, host: _VolunteerHost, pace: float) -> float:
        host.port.hold_s = pace
        action = host.role.turn(wait_s=0.0)
        host.port.hold_s = 0.0
        return pace if isinstance(action, Sample) else self.idle_turn_s

    # --- machines and faults -----------------------------------------------------------------------------------

    def _host(self, identity: Identity, role: Role, store: DiskBlobStore, keep_versions: int) -> SimulatedPort:
        peer, run = identity.peer_id, self._run
        port = SimulatedPort(self.network, peer, (self.network.address(peer),), store.path, self._tally, self._decoding)
        config = self._node_config(identity, role, keep_versions)

        def make(now: float, rng: random.Random) -> Node:
            node = Node(identity, run.run, store, rng, config, now)
            if role is Role.LEARNER or port.held:
                node.begin(run.manifest_raw, port.still_held())
            return node

        self.network.host(peer, run.run, make, port.on_event)
        if role is not Role.LEARNER:
            self.network.connect(peer, run.key.peer_id)
        return port

    def _node_config(self, identity: Identity, role: Role, keep_versions: int) -> NodeConfig:
        """Settings of a machine's node."""
        del identity
        return NodeConfig(role=role, keep_versions=keep_versions, rebuilds=role is Role.VOLUNTEER)

    def _turns(self, port: SimulatedPort, turn: Callable[[], float]) -> None:
        """Repeat `turn` forever; it returns the virtual seconds until the next one."""

        def take() -> None:
            wait = turn() if self.network.is_up(port.peer) else self.idle_turn_s
            self.network.after(wait, take)

        self.network.after(self._rng.random(), take)

    def _schedule_faults(self) -> None:
        """Schedule the partition and the crashes of the settings."""
        peers = sorted(self._volunteers)
        schedule_faults(self.network, self._config, peers, self._run.key.peer_id, self._rng, restart=self._restart)

    def _restart(self, peer: PeerId) -> None:
        host = self._volunteers[peer]
        host.role.close()  # releases the spool before the new role opens it
        host.role = self._make_volunteer(host.identity, host.number)
        host.role.attach(self._network_of(host.number, host.identity, host.port))
        self.network.restart(peer)
        self.network.connect(peer, self._run.key.peer_id)

    def _await_everyone(self) -> float:
        """Virtual seconds after the run's end until every volunteer holds the last version; −1 after ten minutes."""
        ended = self.network.elapsed
        newest = self._learner.version
        for _ in range(60):
            if all(host.role.held_version == newest for host in self._volunteers.values()):
                return self.network.elapsed - ended
            self.network.run_for(10.0)
        return -1.0
