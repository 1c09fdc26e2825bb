"""A simulated swarm with validators, honest and dishonest, and dishonest volunteers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from p2prl.learner.journal.journal import Journal
from p2prl.models.group_work import ReplayTools, SamplingTools
from p2prl.models.pretrained import LoadedModel
from p2prl.models.sampler_port import Sampler
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.run_bootstrap import Prepare, RunBootstrap
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import RunManifest
from p2prl.scoreboard.ledger.ledger_fold import BoardState, LedgerFold
from p2prl.sim.dishonest_validators import DISHONEST_JUDGES, CopyingJudge, HearingPort
from p2prl.sim.hosts import identity_of
from p2prl.sim.shared_engine import SharedScorer
from p2prl.sim.swarm import Swarm, SwarmConfig
from p2prl.validator.service import Audit, Validator, ValidatorConfig
from p2prl.validator.verdicts import judge

_TURN_S = 5.0
"""Virtual seconds between two turns of a validator."""


class ValidatedSwarm(Swarm):
    """A simulated swarm with validators of the kinds named, and with volunteers that cheat.

    Like its base it has more than twelve attributes, because a swarm is assembled here.
    """

    def __init__(
        self,
        config: SwarmConfig,
        loaded: LoadedModel,
        directory: Path,
        *,
        validators: Sequence[str],
        cheats: int = 0,
        cheat: Callable[[Sampler], Sampler] | None = None,
        crash_validators_s: float | None = None,
    ) -> None:
        """`validators` has "honest" or a key of `DISHONEST_JUDGES` for each; all of them crash for good after
        `crash_validators_s`. The first `cheats` volunteers replace their sampler by `cheat` of it."""
        self._cheats = cheats if cheat else 0
        self._cheat = cheat
        self._folder = directory
        self._seed = config.seed
        self.audits: dict[bytes, Audit] = {}
        """Newest state of each validator, by public key."""
        self.kinds: dict[bytes, str] = {}
        """Kind of each validator, by public key."""
        super().__init__(config, loaded, directory)
        peers = [self._start_validator(number, kind) for number, kind in enumerate(validators)]
        if crash_validators_s is not None:
            for peer in peers:
                self.network.after(crash_validators_s, partial(self.network.crash, peer))

    def board(self) -> BoardState:
        """The leaderboard, from the learner's ledger. Call it after `run`."""
        run = self._run
        journal = Journal(self._folder / "learner" / "journal.db")
        fold = LedgerFold(run=run.run, learner=run.key.public_key, parameters=run.manifest.parameters)
        while entries := journal.ledger.entries(fold.height, 256):
            for raw in entries:
                fold.follow(raw)
        journal.close()
        return fold.state()

    def _prepare_of(self, number: int) -> Prepare[SamplingTools]:
        return self._prepare_cheat if number < self._cheats else super()._prepare_of(number)

    def _prepare_cheat(self, manifest: RunManifest, files: Mapping[str, Path]) -> SamplingTools:
        tools = self._run.prepare(manifest, files)
        assert self._cheat is not None
        return replace(tools, sampler=self._cheat(tools.sampler))

    def _start_validator(self, number: int, kind: str) -> PeerId:
        identity = identity_of(f"validator {self._seed}/{number}")
        self.kinds[identity.public_key] = kind
        blobs = DiskBlobStore(self._folder / f"validator-{number}" / "blobs")
        port = self._host(identity, Role.VALIDATOR, blobs, keep_versions=4)
        made = judge if kind == "honest" else DISHONEST_JUDGES[kind](judge)
        heard: NetworkPort = HearingPort(port, made.hear) if isinstance(made, CopyingJudge) else port

        def keep(audit: Audit) -> None:
            self.audits[identity.public_key] = audit

        validator = Validator(
            identity=identity,
            run=self._run.run,
            config=ValidatorConfig(rate=1.0),
            clock=self.network.loop_clock,
            bootstrap=RunBootstrap(
                lambda *_: ReplayTools(SharedScorer(self._run.model), self._run.work), lambda *_: None
            ),
            on_audit=keep,
            on_notice=lambda _: None,
            judge=made,
        )

        def turn() -> float:
            validator.turn(heard, wait_s=0.0)
            return _TURN_S

        self._turns(port, turn)
        return identity.peer_id
