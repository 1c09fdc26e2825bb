"""Options of `p2prl init`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.commands.init_file import take_defaults
from p2prl.cli.options import AsJson, Seed
from p2prl.learner.new_run_plan import USUAL_GROUP_SIZE


@dataclass(frozen=True, kw_only=True, slots=True)
class InitOptions:
    """Values of the options. It has this many fields because each is one option; None comes from the preset."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the run, and of its folder.")]
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            is_eager=True,
            callback=take_defaults,
            help="TOML file with values of these options, such as group-size = 8. What is given here counts. "
            "Default: none.",
        ),
    ] = None
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            help="Defaults for everything not given here. Presets: chain4, guess, arithmetic, countdown, reasoning.",
        ),
    ] = "chain4"
    model: Annotated[
        str | None,
        typer.Option("--model", help="A Hugging Face directory or hub id to train. Default: a small new model."),
    ] = None
    lora_rank: Annotated[
        int,
        typer.Option(
            "--lora", metavar="RANK", min=0, help="Train adapters of this rank alone, such as 16; 0 trains all weights."
        ),
    ] = 0
    data: Annotated[
        list[str],
        typer.Option(
            "--data",
            metavar="[NAME=]FILE[@WEIGHT]",
            help="Your own prompts: JSON lines, CSV or parquet, shards by a pattern, a directory saved by `datasets`, "
            "hub:OWNER/NAME@SPLIT. Repeatable. Default: none.",
        ),
    ] = field(default_factory=list)
    held_out: Annotated[
        list[str],
        typer.Option("--eval", metavar="[NAME=]FILE", help="Rows for evaluation, never trained on. Default: none."),
    ] = field(default_factory=list)
    eval_split: Annotated[
        float,
        typer.Option("--eval-split", help="Share of the rows to hold out where there is no --eval, such as 0.02."),
    ] = 0.0
    environments: Annotated[
        list[str],
        typer.Option(
            "--environment",
            metavar="[NAME=]FILE[@WEIGHT]",
            help="A task of several turns that travels with the run: a WebAssembly module or its text (docs/tasks.md). "
            "Repeatable. Default: none.",
        ),
    ] = field(default_factory=list)
    scorers: Annotated[
        list[str],
        typer.Option(
            "--scorer",
            metavar="[NAME=]SCORER",
            help="How answers are scored: exact, number, choice, regex:PATTERN, json, boxed, FILE.py:FUNCTION … May be "
            "repeated, with weights: 0.1*format:PATTERN. Default: none; --data needs one.",
        ),
    ] = field(default_factory=list)
    length_penalty: Annotated[
        str,
        typer.Option(
            "--length-penalty", metavar="LIMIT:MARGIN", help="Penalty of overlong completions, tokens. Default: none."
        ),
    ] = ""
    prompt_columns: Annotated[
        list[str],
        typer.Option(
            "--prompt-column",
            metavar="[NAME=]COLUMN",
            help="Column of the prompts. Default: prompt, question, problem, instruction or messages.",
        ),
    ] = field(default_factory=list)
    prompts: Annotated[
        list[str],
        typer.Option(
            "--prompt",
            metavar="[NAME=]TEXT",
            help="Text that prompts are made of, with columns in it: '{question}\\n{choices:letters}'. Default: none.",
        ),
    ] = field(default_factory=list)
    answer_columns: Annotated[
        list[str],
        typer.Option(
            "--answer-column",
            metavar="[NAME=]COLUMN",
            help="Column of the answers, or none. Default: answer, solution, ground_truth, target or label.",
        ),
    ] = field(default_factory=list)
    preferences: Annotated[
        str,
        typer.Option(
            "--preferences",
            metavar="FILE",
            help="Rows of prompt, chosen and rejected, to train on beside what is sampled (DPO). Default: none.",
        ),
    ] = ""
    drop_long: Annotated[
        bool, typer.Option("--drop-long", help="Leave out rows whose prompt is too long for the model.")
    ] = False
    drop_conflicts: Annotated[
        bool, typer.Option("--drop-conflicts", help="Keep the first of rows with one prompt and different answers.")
    ] = False
    chat_template: Annotated[
        str,
        typer.Option(
            "--chat-template",
            metavar="on|off|FILE",
            help="Chat template of the prompts; off for rows that were rendered before. Default: the model's.",
        ),
    ] = ""
    system: Annotated[str, typer.Option("--system", help="System prompt of every prompt. Default: none.")] = ""
    tasks: Annotated[
        list[str],
        typer.Option(
            "--task",
            help="Task with its weight in the mix, NAME[@WEIGHT]: chain4, countdown, guess, walk12 or an "
            "installed one. May be repeated. Default: the preset's; none with --data or --environment.",
        ),
    ] = field(default_factory=list)
    goal: Annotated[
        str | None,
        typer.Option("--goal", help="A sentence for volunteers to read. Default: made from tasks and scorers."),
    ] = None
    staleness: Annotated[
        int | None,
        typer.Option("--staleness", min=0, help="Staleness bound S, in learner updates. Default: 128 with chain4."),
    ] = None
    publish_every: Annotated[
        int | None,
        typer.Option("--publish-every", min=1, help="Updates between policy versions. Default: 2 with chain4."),
    ] = None
    group_size: Annotated[int, typer.Option("--group-size", min=1, help="Completions per prompt.")] = USUAL_GROUP_SIZE
    temperature: Annotated[float, typer.Option("--temperature", help="Sampling temperature, 0.01 to 100.")] = 1.0
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens", min=1, help="Longest completion, tokens. Default: 256 with --data, 8 with chain4."
        ),
    ] = None
    reward: Annotated[
        str, typer.Option("--reward", help="Reward to train on, such as success+0.2*process:clip+delta.")
    ] = "success"
    reward_model: Annotated[
        str,
        typer.Option(
            "--reward-model",
            metavar="FOLDER",
            help="Reward model that the learner alone has: a transformers classifier with one label, of sequences (orm "
            "in --reward) or of tokens (prm). Default: none.",
        ),
    ] = ""
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="Type of published weights: float32, bfloat16, float16. Default: the preset's."),
    ] = None
    compute_dtype: Annotated[
        str | None,
        typer.Option(
            "--compute-dtype",
            help="Type engines compute in, one of the same. Default: that of --dtype, else the preset's.",
        ),
    ] = None
    license_name: Annotated[
        str | None, typer.Option("--license", "--licence", help="License of the weights. Default: the model card's.")
    ] = None
    changes: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of run.toml: learner.optimizer.learning_rate=1e-5. Repeatable. Default: the preset's.",
        ),
    ] = field(default_factory=list)
    probe: Annotated[
        str | None,
        typer.Option(
            "--probe",
            metavar="off|GROUPS",
            help="Groups sampled from the first weights, for a minute at most, to see that the run can learn. "
            "Default: 64 with --model or --data, else off.",
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Make the run although a check says that it could not learn.")
    ] = False
    root: Annotated[Path, typer.Option("--in", help="Folder to create the run in.")] = Path("runs")
    seed: Seed = 0
    as_json: AsJson = False
