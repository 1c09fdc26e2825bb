"""Settings of a run (run.toml), opening a run folder with them checked, and making a new run folder.

`run_folder` lists the files of a folder and opens it without torch, where settings are not needed.
"""

from __future__ import annotations

import os
import shutil
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from p2prl.algorithms.reward_spec import parse_reward
from p2prl.config.learnable_checks import InitChecks, NewRun, check_head, check_learnable, head_of
from p2prl.config.listen_config import ListenConfig
from p2prl.config.loss_config import LossConfig, check_dynamic_sampling
from p2prl.config.model_size_settings import fitted_settings
from p2prl.config.prompt_lengths import survey_prompts
from p2prl.config.prompt_record import write_prompt_record
from p2prl.config.reward_model_files import try_reward
from p2prl.config.run_data import seeded_tasks
from p2prl.config.run_folder import Folder, new_folder, open_folder, refuse_folder_in_use
from p2prl.config.run_prompts import RunPrompts, make_prompts
from p2prl.config.toml_tables import parse, with_changes
from p2prl.config.toml_text import changed_text
from p2prl.errors import ConfigError, IntegrityError, MachineError, RemoteProtocolError, require
from p2prl.learner.evaluation.evaluation_plan import EvaluationConfig
from p2prl.learner.learner_config import LearnerConfig
from p2prl.learner.new_run_plan import RunPlan, run_manifest
from p2prl.learner.training.loss_pipeline import LossPipelineConfig
from p2prl.learner.training.preferences import PreferenceConfig
from p2prl.models.base_model.architectures import ARCHITECTURES
from p2prl.models.base_model.base_model_card import base_model_name, model_license
from p2prl.models.base_model.model_folder import model_directory
from p2prl.models.base_model.pretrained import LoadedModel, check_architecture, check_saveable, load_pretrained
from p2prl.models.hardware.device_choice import choose_device
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import confined_tokenizer_reader, read_run_model
from p2prl.models.self_test.decoder_check import check_decoder
from p2prl.models.self_test.golden_creation import golden_files
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.small_models.warm_start import WarmstartConfig, warm_start
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.weights.layout import layout_of
from p2prl.models.weights.lora import (
    ADAPTER_FOLDER,
    add_lora,
    draw_first_adapters,
    plan_lora,
    save_adapters,
    unreached_parameters,
)
from p2prl.net.storage.key_file import create_identity
from p2prl.patches.dead_band import widest_band_ulp
from p2prl.patches.words import WORD_TYPES
from p2prl.protocol.envelope import NO_RUN, seal
from p2prl.protocol.identity import ENTROPY_BYTES, Identity
from p2prl.protocol.limits import MAX_PROMPT_TOKENS
from p2prl.protocol.lora_spec import LoraSpec
from p2prl.protocol.manifests import RunFile, RunManifest, Sampling
from p2prl.tasks.task_registry import task_by_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # before p2prl.models, which quiets what it imports, only as a type


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """Settings of a run that may change between starts: the tables of run.toml."""

    learner: LearnerConfig = field(default_factory=LearnerConfig)
    """Training, publishing and pacing."""
    loss: LossConfig = field(default_factory=LossConfig)
    """The loss, its guards, probation and reference (docs/algorithms.md)."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """How published versions are measured on prompts that are never trained on."""
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)
    """Pairs of preferences, in a run that has some (`p2prl init --preferences`)."""
    network: ListenConfig = field(default_factory=ListenConfig)
    """Addresses of the learner."""
    device: str = "auto"
    """Device to train on: a torch device name, or `auto` for the first available of CUDA, MPS and CPU."""
    threads: int = 0
    """CPU threads of the learner; 0 leaves the choice to torch."""

    def __post_init__(self) -> None:
        require("threads", self.threads, self.threads >= 0, "0 or more")


@dataclass(frozen=True, slots=True)
class RunFolder(Folder):
    """A run folder with its settings read and checked."""

    settings: RunSettings
    changes: tuple[str, ...] = ()
    """Settings of this start alone, `KEY=VALUE`."""

    def settings_table(self) -> dict[str, object]:
        """See `Folder.settings_table`; with the changes of this start."""
        return with_changes(Folder.settings_table(self), self.changes)

    def loss_config(self) -> LossPipelineConfig:
        """The run's loss pipeline. Raises `ConfigError` where its settings do not fit the run."""
        return self.settings.loss.build(self.manifest.sampling, parse_reward(self.manifest.reward))


def open_run(directory: Path, changes: Sequence[str] = ()) -> RunFolder:
    """Read a run folder and its settings, with `changes` to them (`with_changes`).

    Raises `ConfigError` when it is not one or its settings do not fit.
    """
    folder = open_folder(directory)
    where = f"{folder.settings_file} with --set" if changes else str(folder.settings_file)
    settings = parse(RunSettings, with_changes(folder.settings_table(), changes), where=where)
    manifest = folder.manifest
    _check_settings(settings, manifest.sampling, reward=manifest.reward, dtype=manifest.dtype)
    return RunFolder(directory, folder.identity, manifest, folder.manifest_raw, settings, tuple(changes))


def _check_settings(settings: RunSettings, sampling: Sampling, *, reward: str, dtype: str) -> None:
    """`ConfigError` when run.toml does not fit what the run's manifest fixes."""
    pipeline = settings.loss.build(sampling, parse_reward(reward))
    if settings.learner.dynamic_sampling:
        check_dynamic_sampling(pipeline, sampling)
    widest, band_ulp = widest_band_ulp(WORD_TYPES[dtype]), settings.learner.dead_band_ulp
    require(
        "dead_band_ulp", band_ulp, band_ulp <= widest, f"within 0..{widest}, as the weights are published in {dtype}"
    )


def init_run(
    directory: Path,
    plan: RunPlan,
    *,
    settings: str,
    on_progress: Callable[[str, float], None],
    on_notice: Callable[[str], None] | None = None,
    fit_settings: bool = False,
    changes: Sequence[str] = (),
    checks: InitChecks | None = None,
) -> RunFolder:
    """Make a run folder atomically.

    `settings` is the text of run.toml; with `fit_settings`, learning rate, device and threads in it are made to fit the
    model; `changes` (`KEY=VALUE`) come after that. `checks` are made before the folder is put in place; `ConfigError`
    when they say that the run cannot learn. Of large data the first rows are tried before all of it is packed, so that
    most such errors come early.
    `on_progress` gets a stage and a share done, 0..1; `on_notice` gets a message for the user.
    """
    tell = on_notice or (lambda _: None)
    refuse_folder_in_use(directory)
    try_reward(plan, on_progress)
    where = "run.toml with --set" if changes else "run.toml"
    checked = parse(RunSettings, tomllib.loads(changed_text(settings, changes)), where=where)
    _check_settings(checked, plan.sampling, reward=plan.reward, dtype=plan.dtype)
    try:
        with new_folder(directory) as new:
            if checks is not None and not checks.force and (head := head_of(plan.data)):
                _try_head(new / "trial", replace(plan, data=head, preferences=None), settings, checks, on_progress)
            made = _fill(new, plan, settings, on_progress, tell, fit_settings=fit_settings, changes=changes)
            if checks is not None:
                _tell_all(tell, check_learnable(made, checks, on_progress))
    except OSError as error:
        raise MachineError(
            f"cannot make {directory}: {error.strerror}", remedy="Check space and permissions."
        ) from error
    return open_run(directory)


def _try_head(
    trial: Path, head: RunPlan, settings: str, checks: InitChecks, on_progress: Callable[[str, float], None]
) -> None:
    """Check a run of the first rows of its data; packing all of it takes minutes. `ConfigError` if it cannot learn."""
    trial.mkdir()
    check_head(_fill(trial, head, settings, on_progress, tell=lambda _: None), checks, on_progress)
    shutil.rmtree(trial)


def _fill(
    new: Path,
    plan: RunPlan,
    settings: str,
    on_progress: Callable[[str, float], None],
    tell: Callable[[str], None],
    *,
    fit_settings: bool = False,
    changes: Sequence[str] = (),
) -> NewRun:
    """Write all files of a run into the empty folder `new`."""
    identity = Identity.generate(os.urandom(ENTROPY_BYTES))
    create_identity(new / "key.json", identity)
    loaded = _first_weights(plan, on_progress)
    plan = _with_card(plan, loaded)
    prompts = make_prompts(plan, loaded, new, on_progress)
    write_prompt_record(new, prompts.record)
    loaded.model.save_pretrained(new / "model", safe_serialization=True)
    loaded.tokenizer.save_pretrained(new / "model")
    lora = _first_adapters(loaded.model, plan, new / "model" / ADAPTER_FOLDER)
    files = _run_files(loaded, plan, lora, on_progress, tell)
    (new / "files").mkdir()
    for name, data in files.items():
        (new / "files" / name).write_bytes(data)
    layout = layout_of(loaded.model, plan.dtype)
    manifest = run_manifest(
        plan,
        layout,
        identity.public_key,
        files,
        lora=lora,
        data_sets=prompts.data_sets,
        prompt_frame=prompts.frame,
        turn_frame=prompts.turn_frame,
        now=time.time(),
    )
    _tell_all(tell, [*_check_manifest(manifest, plan, loaded, prompts), *prompts.notices])
    _check_files(manifest, files)
    raw = seal(identity, manifest, run=NO_RUN, now=time.time())
    (new / "run.manifest").write_bytes(raw)
    if fit_settings:
        settings = fitted_settings(settings, parameters=manifest.parameters, adapters=lora is not None)
    settings = changed_text(settings, changes)
    if fit_settings:
        tell(_fitted_notice(settings, manifest.parameters))
    if lora is not None:
        trained = f"{layout.trained_parameters:,} of {layout.parameters:,}"
        tell(f"Adapters of rank {lora.rank}: {trained} parameters are trained.")
        if held := unreached_parameters(loaded.model):
            tell(f"No adapter fits the experts: their {held:,} parameters stay as they are, whatever --lora is.")
    (new / "run.toml").write_text(settings)
    return _new_run(Folder(new, identity, manifest, raw), loaded, plan)


def _tell_all(tell: Callable[[str], None], notices: Iterable[str]) -> None:
    for notice in notices:
        tell(notice)


def _first_adapters(model: PreTrainedModel, plan: RunPlan, folder: Path) -> LoraSpec | None:
    """Put the first adapters into the model and write them, if the plan has some."""
    if not plan.lora_rank:
        return None
    lora = plan_lora(model, rank=plan.lora_rank)
    add_lora(model, lora)
    draw_first_adapters(model)
    save_adapters(model, folder)
    return lora


def _run_files(
    loaded: LoadedModel,
    plan: RunPlan,
    lora: LoraSpec | None,
    on_progress: Callable[[str, float], None],
    tell: Callable[[str], None],
) -> dict[str, bytes]:
    """The files of the run, golden groups included."""
    files = export_run_files(loaded) | plan.modules
    return files | golden_files(
        files,
        layout_of(loaded.model, plan.dtype),
        dtype=plan.compute_dtype or plan.dtype,
        temperature=plan.temperature,
        lora=lora,
        on_progress=partial(on_progress, "making the self-test of volunteers"),
        on_notice=tell,
    )


def _new_run(folder: Folder, loaded: LoadedModel, plan: RunPlan) -> NewRun:
    has_template, is_off = bool(loaded.tokenizer.chat_template), plan.chat_template == "off"
    return NewRun(
        folder=folder,
        loaded=loaded,
        template_unused=has_template and is_off,
        uses_template=has_template and not is_off,
    )


def _fitted_notice(text: str, parameters: int) -> str:
    """What run.toml says about the model's size, and the device that was found here."""
    settings = parse(RunSettings, tomllib.loads(text), where="run.toml")
    rate, device = settings.learner.optimizer.learning_rate, choose_device(settings.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{parameters:,} parameters: learning rate {rate:g}, training on {name} (run.toml)."


def _with_card(plan: RunPlan, loaded: LoadedModel) -> RunPlan:
    """The plan with what the model's card says, where the user said nothing."""
    if plan.model is None:
        return plan
    directory = model_directory(plan.model)
    name = base_model_name(plan.model, directory, parameters=layout_of(loaded.model, plan.dtype).parameters)
    return replace(plan, license=plan.license or model_license(directory), base_model=plan.base_model or name)


def _check_manifest(manifest: RunManifest, plan: RunPlan, loaded: LoadedModel, prompts: RunPrompts) -> list[str]:
    """Refuse a run that no volunteer could join, or with procedural prompts that do not fit; notices about them."""
    try:
        manifest.check()
    except RemoteProtocolError as error:
        raise ConfigError(
            f"this run cannot be made: {error}", remedy="Choose another value; nothing was made."
        ) from error
    procedural = seeded_tasks(manifest, plan.brought)
    if not procedural:
        return []
    context = TextCodec(loaded.tokenizer, loaded.model).context
    most_new = manifest.sampling.max_new_tokens
    lengths = survey_prompts(procedural, prompts.encode_framed)
    measured = f"prompts of {lengths.shortest} to {lengths.longest} tokens ({lengths.prompts} were measured)"
    other = "Choose a model with a longer context, or a task with other prompts."
    if not 0 < lengths.shortest <= lengths.longest <= MAX_PROMPT_TOKENS:
        raise ConfigError(f"{measured} are outside 1..{MAX_PROMPT_TOKENS}", remedy=other)
    if context is not None and lengths.longest + most_new > context:
        room = context - lengths.expected
        raise ConfigError(
            f"{measured} and {most_new} new ones exceed the model's {context}",
            remedy=f"Give --max-new-tokens {room} or less." if room > 0 else other,
        )
    return [f"The longest of {lengths.prompts} prompts has {lengths.longest} tokens."]


def _check_files(manifest: RunManifest, files: Mapping[str, bytes]) -> None:
    """Refuse a model whose files every volunteer would refuse."""
    try:
        model = read_run_model(
            files,
            layout_digest=manifest.layout,
            weight_bytes=manifest.weight_bytes,
            dtype=manifest.engine_dtype,
            lora=manifest.lora,
            open_tokenizer=confined_tokenizer_reader(),  # with their limits of time and memory
        )
        model.codec().close()
    except (RemoteProtocolError, IntegrityError) as error:
        raise ConfigError(
            f"volunteers would refuse this model: {error}",
            remedy="Choose another base model, or correct its tokenizer and configuration; nothing was made.",
        ) from error


def _first_weights(plan: RunPlan, on_progress: Callable[[str, float], None]) -> LoadedModel:
    if plan.model is not None:
        on_progress("loading the model", 0.0)
        check_architecture(model_directory(plan.model), plan.model)
        loaded = load_pretrained(plan.model, device=torch.device("cpu"), dtype="float32")
        check_saveable(loaded, plan.model)
        if loaded.model.config.model_type not in ARCHITECTURES:
            on_progress("checking the architecture, which is new here", 0.0)
            check_decoder(loaded.model)
        return loaded
    loaded = tiny_model(plan.task, seed=plan.seed)
    demonstration = task_by_name(plan.task).demonstration
    if demonstration is None:
        return loaded
    recipe = WarmstartConfig()
    warm_start(
        loaded,
        demonstration,
        seed=plan.seed,
        config=recipe,
        on_step=lambda step, _: on_progress("warm start on demonstrations", step / recipe.steps),
    )
    return loaded


def run_file_blobs(folder: RunFolder) -> list[tuple[RunFile, bytes]]:
    """Files of the run with their bytes, for the learner to serve."""
    try:
        return [(file, (folder.directory / "files" / file.name).read_bytes()) for file in folder.manifest.files]
    except OSError as error:
        raise ConfigError(
            f"a file that volunteers need is missing: {error.filename}",
            remedy=f"Copy it from {folder.directory / 'model'}; it must be exactly the same file.",
        ) from error


def describe(manifest: RunManifest) -> dict[str, object]:
    """Facts about a run to show before joining it."""
    return {
        "name": manifest.name,
        "goal": manifest.goal,
        "base_model": manifest.base_model,
        "parameters": manifest.parameters,
        "tasks": {share.task: share.weight for share in manifest.tasks},
        "group_size": manifest.sampling.group_size,
        "max_new_tokens": manifest.sampling.max_new_tokens,
        "staleness_bound": manifest.staleness_bound,
        "publish_every": manifest.publish_every,
        "reward": manifest.reward,
        "licence": manifest.licence,
        "content_policy": manifest.content_policy,
    }
