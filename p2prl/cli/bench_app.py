"""The benchmarks' names, options and help. As everywhere in this room, what they need is imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.options import Json, Seed

bench_app = typer.Typer(no_args_is_help=True, help="Benchmarks that anyone can rerun.")


@bench_app.command("staleness")
def bench_staleness_(
    methods: Annotated[
        str,
        typer.Option(
            "--methods", help="Losses to compare, each `loss[:option=value…]`, with `+addition[=value]` behind it."
        ),
    ] = "grpo, gspo, gepo, gepo_t, gex",
    delays: Annotated[
        str,
        typer.Option(
            "--delays",
            help="Laws of delay in updates: const:K, lognorm:M, weibull:M, exp:M, unif:M; "
            "in seconds: lognorm:L:Us, weibull:L:Us, const:Ks.",
        ),
    ] = "const:0, lognorm:64, weibull:256, const:64, const:128",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds per method and law.")] = 5,
    updates: Annotated[int, typer.Option("--updates", min=60, help="Updates per run, a multiple of 20.")] = 200,
    learning_rate: Annotated[float, typer.Option("--lr", help="AdamW's learning rate.")] = 5e-4,
    task: Annotated[str, typer.Option("--task", help="chain4 or walk12.")] = "chain4",
    step_s: Annotated[
        float | None, typer.Option("--step-s", help="Seconds an update takes, for laws of delay in seconds.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of results; a rerun goes on where it stopped.")] = Path(
        "runs/bench-staleness"
    ),
    check: Annotated[bool, typer.Option("--check", help="Also run and judge the table of demands.")] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare losses under delay on a small model: table, curves and JSON."""
    from p2prl.cli.bench import bench_staleness

    bench_staleness(
        methods=methods,
        delays=delays,
        seeds=seeds,
        updates=updates,
        learning_rate=learning_rate,
        task=task,
        step_s=step_s,
        out=out,
        check=check,
        seed=seed,
        as_json=as_json,
    )


@bench_app.command("rewards")
def bench_rewards_(
    rewards: Annotated[
        str, typer.Option("--rewards", help="Rewards to compare, e.g. success, success+0.2*process:clip+delta.")
    ] = ", ".join(
        ("success", *(f"success+0.2*process{refined}" for refined in ("", ":clip", ":delta", ":clip+delta")))
    ),
    recipe: Annotated[str, typer.Option("--recipe", help="How the policy is trained; see `p2prl bench ppo`.")] = "ppo",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds per reward.")] = 5,
    updates: Annotated[int, typer.Option("--updates", min=30, help="Batches per run, a multiple of 10.")] = 80,
    learning_rate: Annotated[float, typer.Option("--lr", help="AdamW's learning rate.")] = 5e-4,
    task: Annotated[str, typer.Option("--task", help="chain4 or walk12.")] = "chain4",
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=0, help="Longest completion; 0 is the task's own.")
    ] = 16,
    out: Annotated[Path, typer.Option("--out", help="Folder of results; a rerun goes on where it stopped.")] = Path(
        "runs/bench-rewards"
    ),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Show a reward being farmed, and what cures it: table, curves and JSON."""
    from p2prl.cli.bench import bench_rewards

    bench_rewards(
        rewards=rewards,
        recipe=recipe,
        seeds=seeds,
        updates=updates,
        learning_rate=learning_rate,
        task=task,
        max_new_tokens=max_new_tokens,
        out=out,
        seed=seed,
        as_json=as_json,
    )


@bench_app.command("ppo")
def bench_ppo_(
    recipes: Annotated[
        str, typer.Option("--recipes", help="Recipes to compare, each `loss[:option=value…]`; see docs/cli.md.")
    ] = "ppo, ppo:normalise=off, ppo:prompts=4, ppo:reference=start, ppo:reference=ema, "
    "dpo, dpo:reference=start, dpo:reference=ema, dpo:samples=start, grpo, ppo:prompts=32",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds per recipe.")] = 5,
    updates: Annotated[int, typer.Option("--updates", min=30, help="Batches per run, a multiple of 10.")] = 80,
    learning_rate: Annotated[float, typer.Option("--lr", help="AdamW's learning rate.")] = 5e-4,
    task: Annotated[str, typer.Option("--task", help="chain4 or walk12.")] = "chain4",
    out: Annotated[Path, typer.Option("--out", help="Folder of results; a rerun goes on where it stopped.")] = Path(
        "runs/bench-ppo"
    ),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare PPO's key factors, and DPO beside it: table, curves and JSON."""
    from p2prl.cli.bench import bench_ppo

    bench_ppo(
        recipes=recipes,
        seeds=seeds,
        updates=updates,
        learning_rate=learning_rate,
        task=task,
        out=out,
        seed=seed,
        as_json=as_json,
    )


@bench_app.command("spread")
def bench_spread_(
    schemes: Annotated[
        str, typer.Option("--schemes", help="Ways to spread a blob: star, chain, tree, relays, bittorrent, p2prl.")
    ] = "star, chain, tree, relays, bittorrent, p2prl",
    peers: Annotated[str, typer.Option("--peers", help="Swarm sizes, comma-separated.")] = "8,64,512",
    churn: Annotated[str, typer.Option("--churn", help="Shares of peers that die, comma-separated.")] = "0,0.3",
    mib: Annotated[int, typer.Option("--mib", help="Size of the blob, MiB.")] = 128,
    learner_mbit: Annotated[float, typer.Option("--learner-mbit", help="The learner's uplink, Mbit/s.")] = 100.0,
    links: Annotated[
        Path | None, typer.Option("--links", help="File of links, `DOWN UP [SHARE]` a line, Mbit/s. Default: homes.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of results.")] = Path("runs/bench-spread"),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Spread weights over simulated home links, against the lower bound."""
    from p2prl.cli.bench_spread import bench_spread

    bench_spread(
        schemes=schemes,
        peers=peers,
        churn=churn,
        mib=mib,
        learner_mbit=learner_mbit,
        links=links,
        out=out,
        seed=seed,
        as_json=as_json,
    )


@bench_app.command("patch")
def bench_patch_(
    words: Annotated[int, typer.Option("--words", help="Words of a simulated segment.")] = 1 << 22,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Speeds are the best of so many.")] = 3,
    run: Annotated[
        Path | None, typer.Option("--run", help="A run folder whose published versions are measured too.")
    ] = None,
    bands: Annotated[
        str, typer.Option("--bands", help="Dead bands, ulp of bfloat16, comma-separated; empty for none.")
    ] = "",
    out: Annotated[Path, typer.Option("--out", help="Folder of the table, the plot and the JSON.")] = Path(
        "runs/bench-patch"
    ),
    check: Annotated[bool, typer.Option("--check", help="Also judge the table of demands.")] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Measure weight patches beside other layouts: bits per changed word, ratio, speed."""
    from p2prl.cli.bench_patch import bench_patch

    bench_patch(words=words, repeats=repeats, run=run, bands=bands, out=out, check=check, seed=seed, as_json=as_json)


@bench_app.command("swap")
def bench_swap_(
    swaps: Annotated[int, typer.Option("--swaps", min=1, help="Policies swapped in, one after the other.")] = 10,
    dtype: Annotated[str, typer.Option("--dtype", help="Word type of the weights: bfloat16, float16, float32.")] = (
        "bfloat16"
    ),
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when a swap stalls for more than .3 s.")] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Measure how long a policy swap keeps sampling waiting: 30 million parameters, a transfer running."""
    from p2prl.cli.bench_patch import bench_swap

    bench_swap(swaps=swaps, dtype=dtype, check=check, seed=seed, as_json=as_json)
