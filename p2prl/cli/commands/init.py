"""`p2prl init`: create a run."""

from __future__ import annotations

from pathlib import Path

from p2prl.cli.commands import init_options as option
from p2prl.cli.options import AsJson, Seed


def init(
    name: option.Name,
    preset: option.PresetName = "chain4",
    model: option.Model = None,
    lora: option.LoraRank = 0,
    data: option.Data = None,
    held_out: option.HeldOut = None,
    eval_split: option.EvalSplit = 0.0,
    scorer: option.Scorers = None,
    length_penalty: option.LengthPenaltyText = "",
    prompt_column: option.PromptColumns = None,
    answer_column: option.AnswerColumns = None,
    drop_long: option.DropLong = False,
    drop_conflicts: option.DropConflicts = False,
    chat_template: option.ChatTemplate = "",
    system: option.System = "",
    task: option.Tasks = None,
    goal: option.Goal = None,
    staleness: option.Staleness = None,
    publish_every: option.PublishEvery = None,
    group_size: option.GroupSize = 8,
    temperature: option.Temperature = 1.0,
    max_new_tokens: option.MaxNewTokens = None,
    reward: option.RewardText = "success",
    dtype: option.Dtype = None,
    compute_dtype: option.ComputeDtype = None,
    license_name: option.LicenseName = None,
    probe: option.Probe = None,
    force: option.Force = False,
    root_dir: option.RootFolder = Path("runs"),
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Create a run: model, tasks, key and signed manifest."""
    from p2prl.cli.commands.init_run import init_command

    init_command(
        option.InitOptions(
            name=name,
            preset=preset,
            model=model,
            lora_rank=lora,
            tasks=task or [],
            data=data or [],
            held_out=held_out or [],
            eval_split=eval_split,
            scorers=scorer or [],
            length_penalty=length_penalty,
            prompt_columns=prompt_column or [],
            answer_columns=answer_column or [],
            drop_long=drop_long, drop_conflicts=drop_conflicts,
            chat_template=chat_template,
            system=system,
            goal=goal,
            staleness=staleness,
            publish_every=publish_every,
            group_size=group_size,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            reward=reward,
            dtype=dtype,
            compute_dtype=compute_dtype,
            license_name=license_name,
            probe=probe,
            force=force,
            root=root_dir,
            seed=seed,
            as_json=as_json,
        )
    )  # fmt: skip
