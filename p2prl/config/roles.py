"""Assemble the learner, volunteer and validator of a run from a run folder or a join link."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from p2prl.client.progress import Progress
from p2prl.client.service import Volunteer, VolunteerConfig
from p2prl.clock import SystemClock
from p2prl.config.learner_memory import plan_learner_memory
from p2prl.config.learner_replayers import start_replayers
from p2prl.config.network_options import PEERS_FILE, UploadCaps, blobs_of_worker, remember_run
from p2prl.config.new_run import RunFolder, run_file_blobs
from p2prl.config.own_replay import MakeTools, refused_group_replay
from p2prl.config.preference_reading import check_preferences, open_preferences
from p2prl.config.reward_model_files import open_reward_model
from p2prl.config.run_data import downloaded_data, folder_data, serve_data
from p2prl.config.worker_folder import WorkerFolder
from p2prl.confinement.children import Launch
from p2prl.errors import P2PRLError
from p2prl.learner.assembly import Judges, LearnerParts, assemble_learner
from p2prl.learner.evaluation.evaluations import EvaluationTools
from p2prl.learner.published_policies import versions_kept
from p2prl.learner.service import Learner
from p2prl.learner.training.local_update_engine import LocalEngine
from p2prl.learner.training.loss_pipeline import LossPipeline
from p2prl.learner.training.memory_config import weight_dtype
from p2prl.learner.training.update_engine import EngineMaker
from p2prl.models.base_model.attention import use_attention
from p2prl.models.base_model.local_base import flatten_local_base, load_policy
from p2prl.models.engines.engine_names import ChosenEngine
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.evaluation.pass_evaluation import evaluation_sets
from p2prl.models.groups.group_work import GroupWork, ReplayTools, SamplingTools
from p2prl.models.hardware.device_choice import choose_device, repeat_exactly, use_threads
from p2prl.models.replay.loaded_policy import LoadedPolicy
from p2prl.models.replay_statistics.baselines import KeptBaselines
from p2prl.models.run_model import RunModel, confined_tokenizer_reader, read_run_model
from p2prl.models.scorer_port import Scorer
from p2prl.models.self_test.trial import build_tested_sampler
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.weights.layout import layout_of
from p2prl.net.process.network_config import NetworkConfig, ReachOptions
from p2prl.net.process.run_preparation import FindBase, OnManifest, Prepare, RunPreparation
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.protocol.digests import Digest
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.reward_text import reward_model_of
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.relay.relay_config import RelayConfig
from p2prl.validator.own_ledger import OwnLedger
from p2prl.validator.service import Audit, Validator, ValidatorConfig
from p2prl.validator.verdicts import Judge, judge

_EVALUATED_ROWS = 64
"""Completions a learner decodes at once for an evaluation: their keys and values take memory beside an update's."""


def prepare_sampling(
    manifest: RunManifest,
    files: Mapping[str, Path],
    *,
    run: Digest,
    device: torch.device,
    engine: ChosenEngine,
    memory_bytes: int | None = None,
    on_notice: Callable[[str], None] | None = None,
    launch_tokenizer: Launch | None = None,
) -> SamplingTools:
    """A sampler without weights and the run's slots and checks, from the files a run ships.

    The engine computes in the run's compute dtype: in any other, an honest peer's tokens would not replay.
    `memory_bytes` is the most memory it may use, weights included. `on_notice` gets a message if an engine is replaced,
    and the result of the self-test. `launch_tokenizer` starts the process of the run's tokenizer, where this one may
    start none. `MachineError` when the results of the machine are wrong, or those of the engine it asked for.
    """
    model = _read_model(manifest, files, launch_tokenizer)
    data = downloaded_data(manifest, files, scores=False, runs_scorer=False)
    with ExitStack() as unfinished:
        work = GroupWork(manifest, run, model.codec(), data.tasks, environments=data.environments)
        unfinished.callback(work.close)
        work.check_prompts()
        sampler = build_tested_sampler(
            engine,
            model,
            device=device,
            dtype=manifest.engine_dtype,
            temperature=manifest.sampling.temperature,
            memory_bytes=memory_bytes,
            on_notice=on_notice or (lambda _: None),
        )
        unfinished.pop_all()
    return SamplingTools(sampler, work)


def prepare_replay(
    manifest: RunManifest,
    files: Mapping[str, Path],
    *,
    run: Digest,
    device: torch.device,
    scores: bool = True,
    runs_scorer: bool = False,
    baselines: Path | None = None,
    launch_tokenizer: Launch | None = None,
    launch_scorers: Launch | None = None,
) -> ReplayTools:
    """A scorer without weights and the run's slots and checks, from the files a run ships.

    `scores` says that the answers of the run's data are among the files: a volunteer has none, and replays tokens.
    `runs_scorer` says that this machine's owner agreed to run the run's third-party scorers, in the sandbox.
    `baselines` is where the measured noise of engines is kept; None to forget it at the end. The launches start the
    processes of the tokenizer and the scorers, where this one may start none.
    """
    model = _read_model(manifest, files, launch_tokenizer)
    # With a reward model, nobody but the learner can compute a reward, so that scoring the rows would be in vain.
    scores = scores and not reward_model_of(manifest.reward)
    data = downloaded_data(manifest, files, scores=scores, runs_scorer=runs_scorer)
    with ExitStack() as unfinished:
        scorers = data.start_scorers(launch=launch_scorers)
        work = GroupWork(manifest, run, model.codec(), data.tasks, scorers, environments=data.environments)
        unfinished.callback(work.close)
        work.check_prompts()
        policy = PolicyModel(model.build(device=device, dtype=manifest.engine_dtype), model.layout)
        unfinished.pop_all()
    return ReplayTools(TransformersScorer(policy), work, KeptBaselines(baselines))


def _read_model(manifest: RunManifest, files: Mapping[str, Path], launch_tokenizer: Launch | None) -> RunModel:
    """The run's model, before memory is allocated for it. The run's data is among `files` too, and is not read here."""
    model = read_run_model(
        {file.name: files[file.name].read_bytes() for file in manifest.files},
        layout_digest=manifest.layout,
        weight_bytes=manifest.weight_bytes,
        dtype=manifest.engine_dtype,
        lora=manifest.lora,
        open_tokenizer=confined_tokenizer_reader(launch_tokenizer),
    )
    return replace(model, longest_completion=manifest.sampling.max_new_tokens)


def build_learner(
    folder: RunFolder,
    *,
    on_metrics: Callable[[dict[str, object]], None],
    on_notice: Callable[[str], None],
    judges: Judges | None = None,
) -> Learner:
    """The learner of a run folder, resumed to the exact step it had reached; `judges` are the product's by default."""
    device = choose_device(folder.settings.device)
    use_threads(folder.settings.threads)
    repeat_exactly(device)
    memory = plan_learner_memory(folder, device, on_notice)
    # Whatever the published dtype: AdamW's small steps would be lost if 16 bits were rounded to nearest.
    held_in = weight_dtype(memory.precision)
    first = folder.directory / "model"
    check_preferences(folder)
    engine: EngineMaker = LocalEngine
    threads = torch.get_num_threads()
    if folder.settings.learner.parallel.ranks > 1:
        from p2prl.config.learner_ranks import start_ranks  # here: it loads torch's collectives

        engine, threads = start_ranks(folder, memory, device, on_notice)
    training = load_policy(folder.newest_weights(), first, folder.manifest.lora, device=device, dtype=held_in)
    use_attention(training.model, folder.settings.learner.memory.attention)
    preferences = open_preferences(folder, memory, device, on_notice)
    replaying = load_policy(first, first, folder.manifest.lora, device=device, dtype=folder.manifest.engine_dtype)
    layout = layout_of(training.model, folder.manifest.dtype)
    blobs = DiskBlobStore(folder.paths.blobs)
    for file, content in run_file_blobs(folder):
        blobs.add(file.blob, content)
    serve_data(folder, blobs, on_notice)
    data = folder_data(folder)
    codec = TextCodec(replaying.tokenizer, replaying.model)
    reward_model = open_reward_model(folder, device, on_notice)
    scorers = data.start_scorers(on_notice)
    work = GroupWork(folder.manifest, folder.run, codec, data.tasks, scorers, reward_model, data.environments)
    policy = PolicyModel(replaying.model, layout)
    evaluation = _evaluation_tools(folder, policy, work)
    scorer: Scorer = TransformersScorer(policy)
    if folder.settings.learner.replayers:
        evaluation = _with_own_policy(evaluation, scorer)
        scorer = start_replayers(folder, device, threads, on_notice)
    return assemble_learner(
        LearnerParts(
            paths=folder.paths,
            identity=folder.identity,
            manifest=folder.manifest,
            run=folder.run,
            training=training,
            layout=layout,
            replaying=ReplayTools(
                scorer, work, KeptBaselines(folder.paths.noise_baselines), folder.settings.learner.replayers
            ),
            loss=LossPipeline(folder.loss_config()),
            reference=folder.settings.loss.reference_config(),
            preferences=preferences,
            memory=memory,
            engine=engine,
            config=folder.settings.learner,
            clock=SystemClock(),
            random_bytes=os.urandom,
            on_metrics=on_metrics,
            on_notice=on_notice,
            evaluation=evaluation,
            evaluate=folder.settings.evaluation,
            judges=judges or Judges(),
            threads=threads,
        )
    )


def _evaluation_tools(folder: RunFolder, policy: PolicyModel, work: GroupWork) -> EvaluationTools | None:
    """What a learner evaluates with; None when the settings turn it off."""
    wanted = folder.settings.evaluation
    if not wanted.every:
        return None
    sets = evaluation_sets(
        work,
        folder.manifest,
        folder.run,
        prompts=wanted.prompts,
        samples=wanted.samples,
        pass_above=wanted.pass_above,
    )
    sampler = TransformersSampler(policy, most_rows=_EVALUATED_ROWS)
    return EvaluationTools(sampler=sampler, work=work, sets=sets, frees_memory=policy.device.type == "cuda")


def _with_own_policy(evaluation: EvaluationTools | None, scorer: Scorer) -> EvaluationTools | None:
    """Evaluations that no longer share the model of `scorer`, which gives up its weights until one needs them."""
    scorer.sleep()
    return None if evaluation is None else replace(evaluation, policy=LoadedPolicy(scorer))


def learner_network(
    folder: RunFolder,
    listen: tuple[str, ...],
    caps: UploadCaps,
    *,
    peers: tuple[str, ...] = (),
    transport: str = "hivemind",
    reach: ReachOptions | None = None,
) -> NetworkConfig:
    """Network settings of a run's learner; `peers` are addresses to try beside those of run.toml."""
    return NetworkConfig(
        key_file=folder.key_file,
        run=folder.run,
        node=NodeConfig(
            role=Role.LEARNER,
            keep_versions=versions_kept(folder.manifest),
            relay=RelayConfig(upload_bytes_s=caps.bytes_s),
        ),
        blob_dir=folder.paths.blobs,
        listen=listen,
        bootstrap=(*folder.settings.network.bootstrap, *peers),
        peers_file=folder.directory / PEERS_FILE,
        manifest=folder.manifest_raw,
        monthly_bytes=caps.monthly_bytes,
        reach=reach or ReachOptions(),
        transport=transport,
    )


def base_finder(
    model: Path | None, link: JoinLink, worker_folder: WorkerFolder, on_notice: Callable[[str], None]
) -> FindBase | None:
    """Reader of the base model's directory, called once the run is known. An unusable model is only reported."""
    if model is None:
        return None

    def find(manifest: RunManifest) -> bytes:
        on_notice(f"reading the base model {model}")
        try:
            return flatten_local_base(model, manifest, blobs_of_worker(worker_folder, link.run))
        except P2PRLError as error:
            on_notice(f"the base model cannot be used: {error}. Continuing without it. {error.remedy}".strip())
            return b""

    return find


def build_volunteer(
    link: JoinLink,
    worker_folder: WorkerFolder,
    config: VolunteerConfig,
    *,
    prepare: Prepare[SamplingTools],
    base: Path | None = None,
    on_manifest: Callable[[RunManifest], int | None],
    on_progress: Callable[[Progress], None],
    on_notice: Callable[[str], None],
    make_replay_tools: MakeTools,
) -> Volunteer:
    """A volunteer for the run behind a link, working from a worker folder.

    `prepare` makes its sampler (`prepare_sampling`); `base` is a model directory it may start from. `on_manifest` shows
    the run and returns the disk for it, as `OnManifest`. `make_replay_tools` is for groups that the learner refuses.
    """
    directory = worker_folder.run_directory(link.run)
    return Volunteer(
        identity=worker_folder.identity,
        run=link.run,
        spool_path=directory / "spool.db",
        config=replace(config, background=True),
        clock=SystemClock(),
        preparation=RunPreparation(
            prepare, _accepting(directory, on_manifest), base_finder(base, link, worker_folder, on_notice)
        ),
        on_progress=on_progress,
        on_notice=on_notice,
        replay=refused_group_replay(directory, make_replay_tools),
    )


def build_validator(
    link: JoinLink,
    worker_folder: WorkerFolder,
    config: ValidatorConfig,
    *,
    prepare: Prepare[ReplayTools],
    base: Path | None = None,
    runs_scorer: bool = False,
    on_manifest: Callable[[RunManifest], int | None],
    on_audit: Callable[[Audit], None],
    on_notice: Callable[[str], None],
    judge: Judge = judge,
    own_ledger: OwnLedger | None = None,
) -> Validator:
    """A validator for the run behind a link; arguments as for `build_volunteer`.

    `runs_scorer` as in `prepare_replay`, `judge` and `own_ledger` as for `Validator`.
    """
    return Validator(
        identity=worker_folder.identity,
        run=link.run,
        config=config,
        clock=SystemClock(),
        preparation=RunPreparation(
            prepare,
            _accepting(worker_folder.run_directory(link.run), on_manifest),
            base_finder(base, link, worker_folder, on_notice),
            role=Role.VALIDATOR,
            runs_code=runs_scorer,
        ),
        on_audit=on_audit,
        on_notice=on_notice,
        judge=judge,
        own_ledger=own_ledger,
    )


def _accepting(directory: Path, on_manifest: Callable[[RunManifest], int | None]) -> OnManifest:
    """Ask about a run, and remember it once it is accepted: a run that is refused leaves nothing."""

    def accept(manifest: RunManifest, raw: bytes) -> int | None:
        disk_bytes = on_manifest(manifest)
        remember_run(directory, raw)
        return disk_bytes

    return accept
