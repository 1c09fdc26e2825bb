"""Every command's name, options and help. What a command does is imported only when it runs: help needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.bench_app import bench_app
from p2prl.cli.options import Base, Device, Home, Json, Link, Listen, MonthlyGb, RunDir, Seed, Threads, UploadMbit

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Lend a GPU to a shared training run, or start one. No account, no token, no open port.",
)
ledger_app = typer.Typer(no_args_is_help=True, help="Recount a run's signed ledger yourself.")
key_app = typer.Typer(no_args_is_help=True, help="Your identity: show it, write its words down, restore it.")

VOLUNTEER, OPERATE, INSPECT = "Volunteer", "Operate", "Inspect"


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
    base: Base = "",
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
        base=base,
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
    upload_mbit: UploadMbit = 0.0,
    monthly_gb: MonthlyGb = 0.0,
    base: Base = "",
    as_json: Json = False,
) -> None:
    """Check work that strangers did, and sign verdicts.

    Replays a sample of groups at the policy version they declare.
    """
    from p2prl.cli.workers import validate_run

    validate_run(
        link,
        home=home,
        device=device,
        threads=threads,
        listen=listen,
        rate=rate,
        upload_mbit=upload_mbit,
        monthly_gb=monthly_gb,
        base=base,
        as_json=as_json,
    )


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
    upload_mbit: UploadMbit = 0.0,
    monthly_gb: MonthlyGb = 0.0,
    track: Annotated[str, typer.Option("--track", help="none, tensorboard or trackio.")] = "none",
    delay: Annotated[str, typer.Option("--delay", hidden=True)] = "",
    as_json: Json = False,
) -> None:
    """Train a run, and print its join link.

    Publishes policies, takes in groups, signs receipts.
    """
    from p2prl.cli.operate import learn_command

    learn_command(
        run,
        listen=listen,
        updates=updates,
        upload_mbit=upload_mbit,
        monthly_gb=monthly_gb,
        track=track,
        delay=delay,
        as_json=as_json,
    )


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
