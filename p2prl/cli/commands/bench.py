"""`p2prl bench`: the benchmarks."""

from __future__ import annotations

import typer

from p2prl.cli.commands.bench_draw import bench_draw
from p2prl.cli.commands.bench_engine import bench_engine
from p2prl.cli.commands.bench_machine import bench_machine
from p2prl.cli.commands.bench_pacing import bench_pacing
from p2prl.cli.commands.bench_patch import bench_patch
from p2prl.cli.commands.bench_ppo import bench_ppo
from p2prl.cli.commands.bench_publish import bench_publish
from p2prl.cli.commands.bench_replay import bench_replay
from p2prl.cli.commands.bench_rewards import bench_rewards
from p2prl.cli.commands.bench_spread import bench_spread
from p2prl.cli.commands.bench_staleness import bench_staleness
from p2prl.cli.commands.bench_step import bench_step
from p2prl.cli.commands.bench_swap import bench_swap
from p2prl.cli.commands.bench_trust import bench_trust
from p2prl.cli.examples import epilog

bench_app = typer.Typer(no_args_is_help=True, help="Benchmarks that anyone can rerun.")
bench_app.command("machine", epilog=epilog("p2prl bench machine"))(bench_machine)
bench_app.command("staleness", epilog=epilog("p2prl bench staleness"))(bench_staleness)
bench_app.command("rewards", epilog=epilog("p2prl bench rewards"))(bench_rewards)
bench_app.command("ppo", epilog=epilog("p2prl bench ppo"))(bench_ppo)
bench_app.command("spread", epilog=epilog("p2prl bench spread"))(bench_spread)
bench_app.command("patch", epilog=epilog("p2prl bench patch"))(bench_patch)
bench_app.command("swap", epilog=epilog("p2prl bench swap"))(bench_swap)
bench_app.command("publish", epilog=epilog("p2prl bench publish"))(bench_publish)
bench_app.command("step", epilog=epilog("p2prl bench step"))(bench_step)
bench_app.command("draw", epilog=epilog("p2prl bench draw"))(bench_draw)
bench_app.command("engine", epilog=epilog("p2prl bench engine"))(bench_engine)
bench_app.command("replay", epilog=epilog("p2prl bench replay"))(bench_replay)
bench_app.command("pacing", epilog=epilog("p2prl bench pacing"))(bench_pacing)
bench_app.command("trust", epilog=epilog("p2prl bench trust"))(bench_trust)
