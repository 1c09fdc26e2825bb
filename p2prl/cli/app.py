"""Every command's name, options and help. What a command does is imported only when it runs: help needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Lend a GPU to a shared training run, or start one. No account, no token, no open port.",
)
ledger_app = typer.Typer(no_args_is_help=True, help="Recount a run's signed ledger yourself.")
bench_app = typer.Typer(no_args_is_help=True, help="Benchmarks that anyone can rerun.")
key_app = typer.Typer(no_args_is_help=True, help="Your identity: show it, write its words down, restore it.")

VOLUNTEER, OPERATE, INSPECT = "Volunteer", "Operate", "Inspect"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end, on standard output.")]
Home = Annotated[
    Path | None,
    typer.Option("--home", help="Where keys and work are kept. Default: $P2PRL_HOME or your data folder."),
]
Device = Annotated[str, typer.Option("--device", help="auto, cuda, mps or cpu.")]
Threads = Annotated[int, typer.Option("--threads", min=0, help="CPU threads for the model; 0 leaves it to torch.")]
Listen = Annotated[
    list[str] | None,
    typer.Option("--listen", help="Multiaddr to listen on; may be repeated. Default: any TCP port."),
]
RunDir = Annotated[Path, typer.Argument(help="A run folder made by `p2prl init`.")]
Link = Annotated[str, typer.Argument(help="A join link: p2prl://NAME@…?b=…")]
UploadMbit = Annotated[
    float, typer.Option("--upload-mbit", min=0.0, help="Uplink for weights, Mbit/s; 0 measures and uses 80 %.")
]
MonthlyGb = Annotated[
    float, typer.Option("--monthly-gb", min=0.0, help="Weights uploaded in a calendar month, GB; 0 is no limit.")
]
Seed = Annotated[int, typer.Option("--seed", help="Everything random follows from it.")]


def version_callback(value: bool) -> None:
    if value:
        from p2prl import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=version_callback, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Parsed before any command."""


@app.command(rich_help_panel=VOLUNTEER)
def join(
    link: Link,
    home: Home = None,
    device: Device = "auto",
    threads: Threads = 0,
    listen: Listen = None,
    slots: Annotated[int, typer.Option("--slots", min=0, help="Slots decoded together; 0 measures this machine.")] = 0,
    upload_mbit: UploadMbit = 0.0,
    monthly_gb: MonthlyGb = 0.0,
    disk_gb: Annotated[
        float, typer.Option("--disk-gb", min=0.0, help="Weights kept for others, GB; 0 keeps the newest four versions.")
    ] = 0.0,
    as_json: Json = False,
    adversary: Annotated[str, typer.Option("--adversary", hidden=True)] = "",
) -> None:
    """Lend this machine to a run, until Ctrl-C or its end.

    Fetches the policy, samples, signs, delivers, relays weights.
    """
    from p2prl.cli.workers import join_run

    join_run(
        link,
        home=home,
        device=device,
        threads=threads,
        listen=listen,
        slots=slots,
        upload_mbit=upload_mbit,
        monthly_gb=monthly_gb,
        disk_gb=disk_gb,
        as_json=as_json,
        adversary=adversary,
    )


@app.command(rich_help_panel=VOLUNTEER)
def seed(
    link: Link,
    home: Home = None,
    listen: Listen = None,
    upload_mbit: UploadMbit = 0.0,
    monthly_gb: MonthlyGb = 0.0,
    as_json: Json = False,
) -> None:
    """Pass a run's weights on, without a GPU.

    Needs no torch and little memory: chunks go from disk to peers.
    """
    from p2prl.cli.seeding import seed_run

    seed_run(link, home=home, listen=listen, upload_mbit=upload_mbit, monthly_gb=monthly_gb, as_json=as_json)


@app.command(rich_help_panel=VOLUNTEER)
def validate(
    link: Link,
    home: Home = None,
    device: Device = "auto",
    threads: Threads = 0,
    listen: Listen = None,
    rate: Annotated[float, typer.Option("--rate", min=0.0, max=1.0, help="Share of groups to replay.")] = 0.25,
    as_json: Json = False,
) -> None:
    """Check work that strangers did, and sign verdicts.

    Replays a sample of groups at the policy version they declare.
    """
    from p2prl.cli.workers import validate_run

    validate_run(link, home=home, device=device, threads=threads, listen=listen, rate=rate, as_json=as_json)


@app.command(rich_help_panel=OPERATE)
def init(
    name: Annotated[str, typer.Argument(help="Name of the run; also the folder it is made in.")],
    preset: Annotated[str, typer.Option("--preset", help="Sets every dial of the run.")] = "chain4",
    model: Annotated[str | None, typer.Option("--model", help="A Hugging Face directory or hub id to train.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Task to train on. Default: the preset's.")] = None,
    goal: Annotated[str | None, typer.Option("--goal", help="One sentence volunteers read before joining.")] = None,
    staleness: Annotated[
        int | None, typer.Option("--staleness", min=0, help="S: how old a rollout may be, in updates.")
    ] = None,
    publish_every: Annotated[
        int | None, typer.Option("--publish-every", min=1, help="Updates between published versions.")
    ] = None,
    group_size: Annotated[int, typer.Option("--group-size", min=1, help="Completions per prompt.")] = 8,
    temperature: Annotated[float, typer.Option("--temperature", help="Sampling temperature.")] = 1.0,
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", min=1, help="Longest completion.")] = None,
    reward: Annotated[
        str, typer.Option("--reward", help="What is rewarded, e.g. success+0.2*process:clip+delta.")
    ] = "success",
    dtype: Annotated[str | None, typer.Option("--dtype", help="Word type weights travel in.")] = None,
    compute_dtype: Annotated[
        str | None,
        typer.Option("--compute-dtype", help="Word type engines compute in. Default: that of --dtype."),
    ] = None,
    root_dir: Annotated[Path, typer.Option("--in", help="Folder to make the run in.")] = Path("runs"),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Make a run: model, task, key and signed manifest."""
    from p2prl.cli.operate import init_command

    init_command(
        name,
        preset=preset,
        model=model,
        task=task,
        goal=goal,
        staleness=staleness,
        publish_every=publish_every,
        group_size=group_size,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        reward=reward,
        dtype=dtype,
        compute_dtype=compute_dtype,
        root=root_dir,
        seed=seed,
        as_json=as_json,
    )


@app.command(rich_help_panel=OPERATE)
def learn(
    run: RunDir,
    listen: Listen = None,
    updates: Annotated[int | None, typer.Option("--updates", min=0, help="Overrides run.toml.")] = None,
    track: Annotated[str, typer.Option("--track", help="none, tensorboard or trackio.")] = "none",
    delay: Annotated[str, typer.Option("--delay", hidden=True)] = "",
    as_json: Json = False,
) -> None:
    """Train a run, and print its join link.

    Publishes policies, takes in groups, signs receipts.
    """
    from p2prl.cli.operate import learn_command

    learn_command(run, listen=listen, updates=updates, track=track, delay=delay, as_json=as_json)


@app.command(rich_help_panel=INSPECT)
def board(
    source: Annotated[str, typer.Argument(help="A run folder, or a join link.")],
    host: Annotated[str, typer.Option("--host", help="Address to serve the page on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of the page; 0 takes a free one.")] = 8000,
    home: Home = None,
    listen: Listen = None,
    as_json: Json = False,
) -> None:
    """Serve a run's leaderboard.

    Contributors, verified groups, reward curve. With --json, print it once and end.
    """
    from p2prl.cli.inspect import board_command

    board_command(source, host=host, port=port, home=home, listen=listen, as_json=as_json)


@app.command(rich_help_panel=INSPECT)
def status(
    run: Annotated[Path | None, typer.Argument(help="A run folder; without it, the workers of this machine.")] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """What this machine's workers, or a run's learner, do."""
    from p2prl.cli.status import status_command

    status_command(run, home=home, as_json=as_json)


@app.command("eval", rich_help_panel=INSPECT)
def eval_(
    run: RunDir,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="A model directory. Default: the run's newest checkpoint.")
    ] = None,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Fresh prompts to sample.")] = 2048,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest token instead of sampling.")] = False,
    device: Device = "auto",
    threads: Threads = 0,
    seed: Seed = 1,
    as_json: Json = False,
) -> None:
    """Measure a checkpoint's reward on fresh prompts."""
    from p2prl.cli.inspect import eval_command

    eval_command(
        run,
        checkpoint=checkpoint,
        prompts=prompts,
        greedy=greedy,
        device=device,
        threads=threads,
        seed=seed,
        as_json=as_json,
    )


@app.command(rich_help_panel=OPERATE)
def demo(
    volunteers: Annotated[int, typer.Option("--volunteers", min=1, help="Volunteer processes.")] = 3,
    cheats: Annotated[int, typer.Option("--cheats", min=0, help="Volunteers that fabricate completions.")] = 0,
    updates: Annotated[int, typer.Option("--updates", min=1, help="Learner updates.")] = 150,
    out: Annotated[
        Path | None, typer.Option("--out", help="Run folder to make. Default: runs/demo, or the next.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Run a whole swarm on this machine.

    Separate processes over real sockets; shows what they learned.
    """
    from p2prl.cli.demo import demo_command

    demo_command(volunteers=volunteers, cheats=cheats, updates=updates, out=out, seed=seed, as_json=as_json)


@app.command(rich_help_panel=OPERATE)
def sim(
    volunteers: Annotated[int, typer.Option("--volunteers", min=1, help="Volunteers in the swarm.")] = 8,
    updates: Annotated[int, typer.Option("--updates", min=1, help="Learner updates.")] = 60,
    delay: Annotated[
        str, typer.Option("--delay", help="Law of the groups' delay, e.g. lognormal:60:1800 (seconds).")
    ] = "const:0",
    step_seconds: Annotated[
        float, typer.Option("--step-seconds", min=0.001, help="Virtual seconds of one update.")
    ] = 20.0,
    partition: Annotated[
        str | None, typer.Option("--partition", help="FROM:TO virtual seconds in which half the swarm is cut off.")
    ] = None,
    loss_rate: Annotated[float, typer.Option("--loss", min=0.0, max=0.9, help="Share of frames lost.")] = 0.0,
    crashes: Annotated[int, typer.Option("--crashes", min=0, help="Volunteers that crash and restart.")] = 0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Simulate a swarm in one process on virtual time.

    Deterministic by its seed.
    """
    from p2prl.cli.simulate import sim_command

    sim_command(
        volunteers=volunteers,
        updates=updates,
        delay=delay,
        step_seconds=step_seconds,
        partition=partition,
        loss_rate=loss_rate,
        crashes=crashes,
        seed=seed,
        as_json=as_json,
    )


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
    out: Annotated[Path, typer.Option("--out", help="Folder of the table, the plot and the JSON.")] = Path(
        "runs/bench-patch"
    ),
    check: Annotated[bool, typer.Option("--check", help="Also judge the table of demands.")] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Measure weight patches beside other layouts: bits per changed word, ratio, speed."""
    from p2prl.cli.bench_patch import bench_patch

    bench_patch(words=words, repeats=repeats, run=run, out=out, check=check, seed=seed, as_json=as_json)


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


app.add_typer(bench_app, name="bench", rich_help_panel=OPERATE)
app.add_typer(ledger_app, name="ledger", rich_help_panel=INSPECT)
app.add_typer(key_app, name="key", rich_help_panel=VOLUNTEER)


@ledger_app.command("verify")
def ledger_verify(
    source: Annotated[Path, typer.Argument(help="A run folder, or a file written by `p2prl ledger dump`.")],
    as_json: Json = False,
) -> None:
    """Follow the chain from its first entry, check every signature, and print the totals it adds up to."""
    from p2prl.cli.inspect import ledger_verify_command

    ledger_verify_command(source, as_json=as_json)


@ledger_app.command("dump")
def ledger_dump(
    run: RunDir, out: Annotated[Path, typer.Argument(help="File to write.")], as_json: Json = False
) -> None:
    """Write the ledger to one file that anyone can verify."""
    from p2prl.cli.inspect import ledger_dump_command

    ledger_dump_command(run, out, as_json=as_json)


@key_app.command("show")
def key_show(home: Home = None, as_json: Json = False) -> None:
    """Print this machine's peer ids."""
    from p2prl.cli.keys import show_command

    show_command(home, as_json=as_json)


@key_app.command("backup")
def key_backup(
    home: Home = None,
    seat: Annotated[str, typer.Option("--seat", help="Which seat's key, as `key show` lists it.")] = "seat-1",
) -> None:
    """Print the twelve words of a key. Whoever has them can be you."""
    from p2prl.cli.keys import backup_command

    backup_command(home, seat=seat)


@key_app.command("restore")
def key_restore(
    home: Home = None,
    seat: Annotated[str, typer.Option("--seat", help="Which seat gets the key: seat-1, …")] = "seat-1",
) -> None:
    """Read twelve words from standard input and make the key they stand for."""
    from p2prl.cli.keys import restore_command

    restore_command(home, seat=seat)
