"""The trust benchmark: attacks on a learner, false rejects, choosers, floods, what questions and checks cost.

It is made of cells that depend on their settings and the seed alone. Each is stored when it is done, so that a run that
was stopped goes on where it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec

from p2prl.errors import require
from p2prl.protocol.link_messages import LINK_MESSAGES
from p2prl_lab.bench.results.result_version import result_version
from p2prl_lab.bench.results.seed_file import Line, SeedFile
from p2prl_lab.bench.trust.amplification import AmplificationRow, amplification_of
from p2prl_lab.bench.trust.attack_run import CLASS_NOISE, SHAPES, AttackRun, RunSize
from p2prl_lab.bench.trust.attacks import attack_row, groups_of
from p2prl_lab.bench.trust.choosers import ATTACKS as ATTACKS_BY_CHOICE
from p2prl_lab.bench.trust.choosers import CHOICES, HONEST, UNCHECKED, ChooserPlan, chooser_row
from p2prl_lab.bench.trust.flood_rows import TableRow, flood_rows, table_rows
from p2prl_lab.bench.trust.floods import FLOODS, FloodPlan, FloodRow
from p2prl_lab.bench.trust.forged_groups import ATTACKS
from p2prl_lab.bench.trust.honest_bill import EVENTS, bill_row
from p2prl_lab.bench.trust.liars import LIARS, LiarRow, liar_row
from p2prl_lab.bench.trust.model_groups import model_rows
from p2prl_lab.bench.trust.replay_power import POLICIES, FalseRejects, cells
from p2prl_lab.bench.trust.roc import roc_points
from p2prl_lab.bench.trust.starvation import StarvedRow
from p2prl_lab.bench.trust.starved_node import SocketPlan, starved_node_row
from p2prl_lab.bench.trust.validators import ValidatorBenchConfig, run_validator_bench

PARTS = ("attacks", "false_rejects", "choosers", "honest_bill", "liars", "floods", "answers", "cost")

TABLES = (
    "attacks", "false_rejects", "power", "roc", "choosers", "honest_bill", "liars", "floods", "tables",
    "validators",    "amplification", "starved", "cost",
)  # fmt: skip
"""Keys of the result, each a list of rows; `cost` has one."""

VERSION = result_version(trust=3)

COLD = 0.6
"""A temperature at which the cap of one logit is more than a nat."""

CHOOSER_PLAN = ChooserPlan()

FLOOD_PLAN = FloodPlan(volunteers=3, begins_s=90.0, lasts_s=90.0, after_s=120.0, sample_seconds=4.0)
"""A short run with the flood of 50 keys that have 60 groups each."""

_COLD_ATTACKS = ("honest", "invented token", "invented token in a wider class")

Rows = dict[str, list[dict[str, Any]]]
"""Rows by table."""


@dataclass(frozen=True, kw_only=True)
class TrustConfig:
    """What to measure, and on how much."""

    parts: tuple[str, ...] = PARTS
    dtypes: tuple[str, ...] = tuple(CLASS_NOISE)
    tokens: tuple[int, ...] = tuple(SHAPES)
    """Of a group."""
    groups: int = 300
    """Synthetic groups of each cell of the usual policy; others get a third."""
    attacks: tuple[str, ...] = tuple(ATTACKS)
    attack_groups: int = 20
    """Groups of a real model, of each attack, at most."""
    cell_tokens: int = 32_768
    """Tokens of these, at most; 0 for no limit."""
    choosers: ChooserPlan = CHOOSER_PLAN
    """Training that shows what a choice costs."""
    floods: tuple[str, ...] = tuple(FLOODS)
    plan: FloodPlan = FLOOD_PLAN
    """Its seed is not used."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, values, known in (
            ("part", self.parts, PARTS),
            ("dtypes", self.dtypes, tuple(CLASS_NOISE)),
            ("tokens", self.tokens, tuple(SHAPES)),
            ("attacks", self.attacks, tuple(ATTACKS)),
            ("floods", self.floods, tuple(FLOODS)),
        ):
            allowed = ", ".join(map(str, known))
            require(name, ", ".join(map(str, values)), bool(values) and set(values) <= set(known), f"among {allowed}")
        require("groups", self.groups, 1 <= self.groups <= 100_000, "1 to 100,000")
        require("attack_groups", self.attack_groups, 1 <= self.attack_groups <= 2_000, "1 to 2,000")
        require("cell_tokens", self.cell_tokens, self.cell_tokens >= 0, "0 or more")


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the rows of a cell depend on, besides the seed."""

    part: str
    case: str
    dtype: str = ""
    tokens: int = 0
    temperature: float = 1.0
    groups: int = 0
    version: str = VERSION


class Cell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rows of a cell."""

    seed: int
    rows: Rows


@dataclass(frozen=True, slots=True)
class _Job:
    """A cell, and how its rows are made."""

    setting: Setting
    make: Callable[[], Rows]


def run_trust(config: TrustConfig, out: Path, *, on_progress: Callable[[str, float], None]) -> Rows:
    """All rows that `config` asks for, by table. Cells that `out` holds are not computed again."""
    stored: SeedFile[Setting, Cell] = SeedFile(out / "results.jsonl", Line[Setting, Cell])
    jobs = list(_jobs(config, out))
    rows: Rows = {table: [] for table in TABLES}
    for number, job in enumerate(jobs):
        setting = job.setting
        size = f", {setting.dtype}, {setting.tokens} tokens" if setting.tokens else ""
        on_progress(f"{setting.part}: {setting.case}{size}", number / len(jobs))
        if stored.missing(setting, [config.seed]):
            stored.add(setting, [Cell(seed=config.seed, rows=job.make())])
        (cell,) = stored.of(setting, [config.seed])
        for table, made in cell.rows.items():
            rows[table] += made
    return rows


def _jobs(config: TrustConfig, out: Path) -> Iterator[_Job]:
    made = {
        "attacks": lambda: _attacks(config),
        "false_rejects": lambda: _false_rejects(config),
        "choosers": lambda: _choosers(config, out),
        "honest_bill": lambda: _honest_bill(config),
        "liars": lambda: _liars(config.seed),
        "floods": lambda: _floods(config),
        "answers": lambda: _answers(config.seed),
        "cost": _cost,
    }
    for part in PARTS:
        if part in config.parts:
            yield from made[part]()


def _attacks(config: TrustConfig) -> Iterator[_Job]:
    runs = lru_cache(maxsize=1)(AttackRun)  # its cells come one after the other
    for dtype, tokens, temperature in itertools.product(config.dtypes, config.tokens, (1.0, COLD)):
        size = RunSize(dtype=dtype, tokens=tokens, temperature=temperature, seed=config.seed)
        for name in config.attacks:
            if tokens > ATTACKS[name].most_tokens or (temperature == COLD and name not in _COLD_ATTACKS):
                continue
            groups = groups_of(ATTACKS[name], tokens, groups=config.attack_groups, cell_tokens=config.cell_tokens)

            def make(size: RunSize = size, name: str = name, groups: int = groups) -> Rows:
                return {"attacks": [asdict(attack_row(runs(size), name, groups))]}

            yield _Job(
                Setting(
                    part="attacks", case=name, dtype=dtype, tokens=tokens, temperature=temperature, groups=groups
                ),
                make,
            )  # fmt: skip


def _false_rejects(config: TrustConfig) -> Iterator[_Job]:
    for policy, dtype, tokens, temperature in itertools.product(POLICIES, config.dtypes, config.tokens, (1.0, COLD)):
        groups = config.groups if policy == "usual" else -(-config.groups // 3)

        def make(
            policy: str = policy,
            dtype: str = dtype,
            tokens: int = tokens,
            at: float = temperature,
            groups: int = groups,
        ) -> Rows:
            found = list(
                cells(groups, config.seed, policies=[policy], temperatures=[at], sizes=[tokens], dtypes=[dtype])
            )
            return {
                "false_rejects": [asdict(row) for row in found if isinstance(row, FalseRejects)],
                "power": [asdict(row) for row in found if not isinstance(row, FalseRejects)],
            }

        yield _Job(
            Setting(
                part="false_rejects", case=f"policy {policy}", dtype=dtype, tokens=tokens, temperature=temperature,
                groups=groups,
            ),
            make,
        )  # fmt: skip
    for dtype in config.dtypes:
        groups = min(config.groups, 4 * config.attack_groups)
        yield _Job(
            Setting(part="false_rejects", case="small models", dtype=dtype, groups=groups),
            partial(_of_models, dtype, groups, config.seed),
        )
        groups = min(config.groups, 15 * config.attack_groups)
        yield _Job(
            Setting(part="false_rejects", case="detection curves", dtype=dtype, groups=groups),
            partial(_of_rules, dtype, groups, config.seed),
        )


def _of_models(dtype: str, groups: int, seed: int) -> Rows:
    rows = model_rows(groups, seed, dtypes=[dtype])
    return {
        "false_rejects": [
            asdict(
                FalseRejects(
                    policy=f"model {row.model}", dtype=row.dtype, noise=row.noise, temperature=row.temperature,
                    tokens=row.tokens, groups=row.groups, rejected=row.rejected, faults=row.faults,
                )
            )
            for row in rows
        ]
    }  # fmt: skip


def _of_rules(dtype: str, groups: int, seed: int) -> Rows:
    return {"roc": [asdict(point) for point in roc_points(groups, seed, dtypes=[dtype])]}


def _choosers(config: TrustConfig, out: Path) -> Iterator[_Job]:
    plan = config.choosers
    checked = [(name, keys, honest, choice, True) for (name, keys), honest, choice in
               itertools.product(ATTACKS_BY_CHOICE, HONEST, CHOICES)]  # fmt: skip
    for name, keys, honest, choice, checks in (*checked, *((*each, 10, CHOICES[0], False) for each in UNCHECKED)):
        case = f"{name}, {keys} keys beside {honest}, by {choice}, {'' if checks else 'un'}checked, {plan}"

        def make(
            name: str = name, keys: int = keys, honest: int = honest, choice: str = choice, checks: bool = checks
        ) -> Rows:
            return {"choosers": [asdict(chooser_row(name, keys, honest, choice, checks=checks, plan=plan, out=out))]}

        yield _Job(Setting(part="choosers", case=case), make)


def _honest_bill(config: TrustConfig) -> Iterator[_Job]:
    for event, trickle in EVENTS:

        def make(event: str = event, trickle: float = trickle) -> Rows:
            return {"honest_bill": [asdict(bill_row(event, trickle, config.seed))]}

        yield _Job(Setting(part="honest_bill", case=f"{event}, {trickle:g}"), make)


def _liars(seed: int) -> Iterator[_Job]:
    for name in LIARS:
        yield _Job(Setting(part="liars", case=name), partial(_only_row, "liars", partial(liar_row, name, seed)))


def _floods(config: TrustConfig) -> Iterator[_Job]:
    plan = replace(config.plan, seed=config.seed)
    case = f"{plan.volunteers} volunteers, {plan.keys} keys of {plan.groups_per_key}, {plan.lasts_s:g} s"
    for flood, make in flood_rows(plan, config.floods):
        yield _Job(Setting(part="floods", case=f"{flood}: {case}"), partial(_only_row, "floods", make))
    for table, make_table in table_rows(config.seed):
        yield _Job(Setting(part="floods", case=f"table of {table}"), partial(_only_row, "tables", make_table))
    validators = ValidatorBenchConfig(seed=config.seed)
    yield _Job(
        Setting(part="floods", case="validators"),
        lambda: {"validators": [asdict(row) for row in run_validator_bench(validators)]},
    )


def _answers(seed: int) -> Iterator[_Job]:
    for kind in LINK_MESSAGES:
        yield _Job(
            Setting(part="answers", case=f"message {kind.name}"),
            partial(_only_row, "amplification", partial(amplification_of, kind, seed=seed)),
        )
    for upload_mbit, addresses in itertools.product((1.0, 5.0), (1, 16)):
        plan = SocketPlan(upload_mbit=upload_mbit, addresses=addresses, seed=seed)
        case = f"{plan.keys} keys of {addresses} addresses ask over sockets, {upload_mbit:g} Mbit/s"
        yield _Job(Setting(part="answers", case=case), partial(_only_row, "starved", partial(starved_node_row, plan)))


def _only_row(table: str, make: Callable[[], FloodRow | TableRow | AmplificationRow | StarvedRow | LiarRow]) -> Rows:
    return {table: [asdict(make())]}


def _cost() -> Iterable[_Job]:
    def make() -> Rows:
        from p2prl_lab.bench.trust.check_cost import measure_check_cost

        return {"cost": [asdict(measure_check_cost())]}

    return [_Job(Setting(part="cost", case="checks of an update"), make)]
