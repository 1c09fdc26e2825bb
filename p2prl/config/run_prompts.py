"""Prompts of a new run: the data sets packed, the chat template rendered once around procedural prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from p2prl.config.preference_packing import FOLDER as PREFERENCES_FOLDER
from p2prl.config.preference_packing import PreferencePacker
from p2prl.config.prompt_record import PromptRecord, prompt_record
from p2prl.config.reward_model_files import copy_reward_model
from p2prl.errors import ConfigError
from p2prl.learner.new_run_plan import RunPlan
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.tokenizer.prompt_rendering import PromptRenderer, chat_template
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.plain_text import counted
from p2prl.protocol import limits
from p2prl.protocol.manifests import DataSet, blob_of, chunk_bytes_for
from p2prl.tasks.data.data_plan import HELD_OUT_ROWS_FILE, PROMPTS_FILE, ROWS_FILE, SCORER_FILE, DataPlan
from p2prl.tasks.data.held_out_rows import refuse_overlap
from p2prl.tasks.data.packed_data import file_blob
from p2prl.tasks.data.packing import DataPacker, PackedData
from p2prl.tasks.data.split_packer import PromptRoom
from p2prl.tasks.scorers.build import RowCheck
from p2prl.tasks.task_registry import task_by_name

DATA_FOLDER = "data"
"""Folder of a run with one folder for each data task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPrompts:
    """The prompts of a run, as its manifest states them."""

    data_sets: tuple[DataSet, ...]
    frame: tuple[str, str]
    """Texts before and after every procedural prompt."""
    turn_frame: tuple[str, str]
    """Texts before and after every message of an environment."""
    encode_framed: Callable[[Sequence[str]], list[tuple[int, ...]]]
    """Tokens of procedural prompts, as every peer of the run makes them."""
    record: PromptRecord
    """How they were rendered."""
    notices: tuple[str, ...]
    """Sentences for the user."""


def make_prompts(
    plan: RunPlan, loaded: LoadedModel, folder: Path, on_progress: Callable[[str, float], None]
) -> RunPrompts:
    """Pack the plan's data sets into `folder`/data, and put preferences and a reward model beside it.

    `ConfigError` for data or a model that no run could use. A chat template that the plan brings becomes the
    tokenizer's own.
    """
    codec = TextCodec(loaded.tokenizer, loaded.model)
    if not codec.stop_ids:
        raise ConfigError(
            "the model has no stop token, so that no completion would ever finish",
            remedy="Set eos_token_id in its generation_config.json, or eos_token in its tokenizer_config.json.",
        )
    if outside := [token for token in codec.stop_ids if not 0 <= token < codec.vocabulary]:
        raise ConfigError(
            f"the model's stop token {outside[0]} is outside its vocabulary of {codec.vocabulary:,} tokens",
            remedy="Correct eos_token_id in its generation_config.json, and eos_token in its tokenizer_config.json.",
        )
    template = chat_template(loaded.tokenizer, plan.chat_template)
    if plan.chat_template not in ("", "on", "off"):
        loaded.tokenizer.chat_template = template
    renderer = PromptRenderer(
        loaded.tokenizer, template=template, system=plan.system, keeps_control_tokens=plan.chat_template == "off"
    )
    ending = _stop_at_ending(loaded, renderer)
    codec = TextCodec(loaded.tokenizer, loaded.model)
    seeded = (*plan.procedural, *plan.environments)
    frame = renderer.frame() if seeded else ("", "")
    turn_frame = ("", "")
    if plan.environments or any(task_by_name(share.task).environment for share in plan.procedural):
        turn_frame = renderer.turn_frame(loaded.tokenizer.convert_ids_to_tokens(sorted(codec.stop_ids)))
    room = PromptRoom(context=codec.context, max_new_tokens=plan.max_new_tokens)
    data_sets, notices = _pack(plan.data, folder / DATA_FOLDER, renderer, room, on_progress)
    notices = (*(each.notice for each in plan.environments), *notices, *ending)
    if plan.preferences is not None:
        packer = PreferencePacker(loaded, renderer, drop_long=plan.drops_long_preferences)
        notices += (packer.pack(plan.preferences, folder / PREFERENCES_FOLDER, on_progress),)
    if plan.reward_model is not None:
        notices += (copy_reward_model(plan.reward_model, folder, on_progress),)
    if seeded and template is not None and frame == ("", ""):
        notices += ("The chat template rewrites prompts, so that procedural tasks go without it.",)

    def encode_framed(texts: Sequence[str]) -> list[tuple[int, ...]]:
        return codec.encode_all(texts, frame=frame, rendered=any(frame))

    return RunPrompts(
        data_sets=data_sets,
        frame=frame,
        turn_frame=turn_frame,
        encode_framed=encode_framed,
        record=prompt_record(template, plan.system),
        notices=notices,
    )


def _stop_at_ending(loaded: LoadedModel, renderer: PromptRenderer) -> tuple[str, ...]:
    """Make the token that ends a turn in the chat template a stop token of the model; a notice if it was none.

    Base models come with a template whose turns end with another token than the model's own texts.
    """
    codec, ending = TextCodec(loaded.tokenizer, loaded.model), renderer.ending()
    if ending is None or ending in codec.stop_ids or ending >= codec.vocabulary:
        return ()
    token = loaded.tokenizer.convert_ids_to_tokens(ending)
    if loaded.model.generation_config is None:
        raise ConfigError(
            f"the chat template ends a turn with {token}, which does not stop the model",
            remedy=f"Add {ending} to eos_token_id in its generation_config.json.",
        )
    loaded.model.generation_config.eos_token_id = sorted({*codec.stop_ids, ending})
    return (f"The chat template ends a turn with {token}, which now stops the model too.",)


def _pack(
    plans: Sequence[DataPlan],
    folder: Path,
    renderer: PromptRenderer,
    room: PromptRoom,
    on_progress: Callable[[str, float], None],
) -> tuple[tuple[DataSet, ...], tuple[str, ...]]:
    """Pack all data sets, then write their files, so that overlaps between any two are found first."""
    notices: list[str] = []
    packed: Mapping[str, PackedData] = {}
    with ExitStack() as stack:
        packers, left = [], limits.MAX_DATA_BYTES
        for plan in plans:
            (folder / plan.task).mkdir(parents=True)
            problem = RowCheck(plan.scoring).problem
            packer = DataPacker(plan, folder / plan.task, renderer, room, problem=problem)
            stack.callback(packer.close)
            left -= packer.pack(on_progress, most_bytes=left)
            packers.append(packer)
        refuse_overlap(packers)
        packed = {plan.task: packer.finish() for plan, packer in zip(plans, packers, strict=True)}
    for task, data in packed.items():
        held_out = f", {data.held_out_rows:,} for evaluation only" if data.held_out_rows else ""
        notices += data.notices
        rows = counted(data.rows, "row")
        notices.append(
            f"{task}: {rows} to train on{held_out}; the longest prompt has {counted(data.longest, 'token')}."
        )
    return tuple(_data_set(plan, folder / plan.task, packed[plan.task]) for plan in plans), tuple(notices)


def _data_set(plan: DataPlan, folder: Path, packed: PackedData) -> DataSet:
    """A packed data set as the manifest states it."""
    if plan.code is not None:
        (folder / SCORER_FILE).write_bytes(plan.code)
    return DataSet(
        task=plan.task,
        rows=packed.rows,
        prompts=file_blob(folder / PROMPTS_FILE),
        answers=file_blob(folder / ROWS_FILE),
        scoring=plan.scoring,
        code=None if plan.code is None else blob_of(plan.code, chunk_bytes_for(len(plan.code), pieces=8)),
        held_out=file_blob(folder / HELD_OUT_ROWS_FILE).root if packed.held_out_rows else b"",
    )
