"""Options of `p2prl init`: their names, help texts and types, and their values together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the run, and of its folder.")]
PresetName = Annotated[
    str,
    typer.Option(
        "--preset",
        help="Defaults for everything not given here. Presets: chain4, guess, arithmetic, countdown, reasoning.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", help="A Hugging Face directory or hub id to train. Default: a small new model."),
]
LoraRank = Annotated[
    int,
    typer.Option(
        "--lora", metavar="RANK", min=0, help="Train adapters of this rank alone, such as 16; 0 trains all weights."
    ),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        help="Task with its weight in the mix, NAME[@WEIGHT]: chain4, countdown, guess, walk12 or an installed one. "
        "May be repeated. Default: the preset's; none with --data.",
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="[NAME=]FILE[@WEIGHT]",
        help="Your own prompts: JSON lines, parquet, or a directory saved by `datasets`. Repeatable. Default: none.",
    ),
]
HeldOut = Annotated[
    list[str] | None,
    typer.Option("--eval", metavar="[NAME=]FILE", help="Rows for evaluation, never trained on. Default: none."),
]
EvalSplit = Annotated[
    float, typer.Option("--eval-split", help="Share of the rows to hold out where there is no --eval, such as 0.02.")
]
Scorers = Annotated[
    list[str] | None,
    typer.Option(
        "--scorer",
        metavar="[NAME=]SCORER",
        help="How answers are scored: exact, number, choice, regex:PATTERN, json, boxed, FILE.py:FUNCTION … May be "
        "repeated, with weights: 0.1*format:PATTERN. Default: none; --data needs one.",
    ),
]
LengthPenaltyText = Annotated[
    str,
    typer.Option(
        "--length-penalty", metavar="LIMIT:MARGIN", help="Penalty of overlong completions, tokens. Default: none."
    ),
]
PromptColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt-column",
        metavar="[NAME=]COLUMN",
        help="Column of the prompts. Default: prompt, question, problem, instruction or messages.",
    ),
]
AnswerColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--answer-column",
        metavar="[NAME=]COLUMN",
        help="Column of the answers, or none. Default: answer, solution, ground_truth, target or label.",
    ),
]
DropLong = Annotated[bool, typer.Option("--drop-long", help="Leave out rows whose prompt is too long for the model.")]
DropConflicts = Annotated[
    bool, typer.Option("--drop-conflicts", help="Keep the first of rows with one prompt and different answers.")
]
ChatTemplate = Annotated[
    str,
    typer.Option(
        "--chat-template",
        metavar="on|off|FILE",
        help="Chat template of the prompts; off for rows that were rendered before. Default: the model's.",
    ),
]
System = Annotated[str, typer.Option("--system", help="System prompt of every prompt. Default: none.")]
Goal = Annotated[
    str | None, typer.Option("--goal", help="A sentence for volunteers to read. Default: made from tasks and scorers.")
]
Staleness = Annotated[
    int | None,
    typer.Option("--staleness", min=0, help="Staleness bound S, in learner updates. Default: 128 with chain4."),
]
PublishEvery = Annotated[
    int | None,
    typer.Option("--publish-every", min=1, help="Updates between policy versions. Default: 2 with chain4."),
]
GroupSize = Annotated[int, typer.Option("--group-size", min=1, help="Completions per prompt.")]
Temperature = Annotated[float, typer.Option("--temperature", help="Sampling temperature, 0.01 to 100.")]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens", min=1, help="Longest completion, tokens. Default: 256 with --data, 8 with chain4."
    ),
]
RewardText = Annotated[
    str, typer.Option("--reward", help="Reward to train on, such as success+0.2*process:clip+delta.")
]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", help="Type of published weights: float32, bfloat16, float16. Default: the preset's."),
]
ComputeDtype = Annotated[
    str | None,
    typer.Option(
        "--compute-dtype", help="Type engines compute in, one of the same. Default: that of --dtype, else the preset's."
    ),
]
LicenseName = Annotated[
    str | None, typer.Option("--license", "--licence", help="License of the weights. Default: the model card's.")
]
Probe = Annotated[
    str | None,
    typer.Option(
        "--probe",
        metavar="off|GROUPS",
        help="Groups sampled from the first weights, for a minute at most, to see that the run can learn. Default: 64 "
        "with --model or --data, else off.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Make the run although a check says that it could not learn.")]
RootFolder = Annotated[Path, typer.Option("--in", help="Folder to create the run in.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class InitOptions:
    """Values of the options. It has this many fields because each is one option."""

    name: str
    preset: str
    model: str | None
    lora_rank: int
    tasks: list[str]
    data: list[str]
    held_out: list[str]
    eval_split: float
    scorers: list[str]
    length_penalty: str
    prompt_columns: list[str]
    answer_columns: list[str]
    drop_long: bool
    drop_conflicts: bool
    chat_template: str
    system: str
    goal: str | None
    staleness: int | None
    publish_every: int | None
    group_size: int
    temperature: float
    max_new_tokens: int | None
    reward: str
    dtype: str | None
    compute_dtype: str | None
    license_name: str | None
    probe: str | None
    force: bool
    root: Path
    seed: int
    as_json: bool
