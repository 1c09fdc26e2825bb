"""The sweep: every method at its best learning rate and clip, chosen on development seeds and reported on others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import msgspec

from p2prl.errors import ConfigError, IntegrityError, MachineError
from p2prl_lab.bench.staleness.bases import ON_POLICY, areas_of
from p2prl_lab.bench.staleness.delay_laws import parse_law
from p2prl_lab.bench.staleness.methods import parse_method
from p2prl_lab.bench.staleness.results import ResultFile, Setting
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.training_plan import TrainingPlan
from p2prl_lab.bench.training.warm_start import UNWRITABLE

DEVELOPMENT_SEEDS = range(100, 105)
"""Seeds that settings are chosen on, and nothing is reported on."""

REPORTING_SEEDS = 10
"""Reporting seeds, from 0 on, unless told otherwise."""

RATES = (1.0, 0.5, 0.25, 2.0)
"""Learning rates tried, relative to the plan's; the plan's own first, which wins a tie. Lower ones may follow, see
`wants_lower`."""

LEAST_RATE = 0.01
"""No lower rate is tried, relative to the plan's: there a run hardly leaves its start."""

KNOBS: tuple[tuple[tuple[str, ...], tuple[tuple[float, ...], ...]], ...] = (
    (("share", "clip_low", "clip_high"), ((0.02, 0.4, 0.4), (0.2, 0.8, 4.0))),
    (("share", "penalty"), ((0.02, 1.0), (0.2, 1.0))),
    (("clip_low", "clip_high", "delta"), ((0.4, 0.4, 4.0), (0.8, 4.0, 8.0))),
    (("clip_low", "clip_high", "veto"), ((0.4, 0.4, 0.1), (0.8, 4.0, 0.01))),
    (("clip_low", "clip_high"), ((0.4, 0.4), (0.8, 4.0))),
    (("clip",), ((0.4,), (0.8,))),
    (("cap",), ((1.0,), (4.0,))),
    (("low", "high"), ((0.25, 4.0), (0.0625, 16.0))),
    (("mask_low", "mask_high"), ((0.1, 0.1), (0.4, 0.4))),
    (("budget",), ((0.01,), (0.16,))),
    (("negative_low", "negative_high"), ((0.0, 0.5), (0.0, 2.0))),
    (("nll_floor",), ((0.001,), (0.1,))),
    (("delta_v",), ((-0.05,), (-0.2,))),
    (("log_clip_low", "log_clip_high", "log_clip_dual"), ((0.05, 0.1, 0.1), (0.1, 0.2, 0.2))),
    (("log_clip_low", "log_clip_high"), ((0.2, 0.2), (0.8, 0.8))),
    (("tau_pos", "tau_neg"), ((0.5, 0.525), (2.0, 2.1))),
    (("power_pos", "decay_pos", "power_neg", "decay_neg"), ((1.0, 1.5, 1.5, 1.0), (4.0, 6.0, 6.0, 4.0))),
    (("threshold",), ((0.1,), (0.6,))),
    (("beta",), ((1e-4,), (1e-2,))),
)
"""Clips and caps tried besides a loss's defaults: the first entry whose options the loss has, since each loss has one
trust region. The default `share` is for larger batches: here it is one token. A loss with none, and a method that sets
the option itself, are swept over learning rates alone."""


def grid(method: str, plan: TrainingPlan, *, max_completion_tokens: int, rates: Sequence[float] = RATES) -> list[str]:
    """The settings of a method that a sweep tries, as methods, each once: learning rates × clips or caps.

    `rates` are relative to the plan's; a method with a rate of its own keeps it.
    """
    parsed = parse_method(method, max_completion_tokens=max_completion_tokens)
    body, *added = parsed.text.split("+")
    given = {setting.partition("=")[0] for setting in body.split(":")[1:]}
    fields = {field.name for field in dataclasses.fields(parsed.objective.config)}
    bodies = [body]
    for names, choices in KNOBS:
        if set(names) <= fields:
            if not given & set(names):
                options = (zip(names, values, strict=True) for values in choices)
                wider = [body + "".join(f":{name}={value:g}" for name, value in pairs) for pairs in options]
                bodies += [other for other in wider if _accepted(other, max_completion_tokens)]
            break
    tails = [""] if "lr" in parsed.additions else [f"+lr={rate * plan.learning_rate:g}" for rate in rates]
    return ["+".join((body, *added)) + tail for body in bodies for tail in tails]


def _accepted(body: str, max_completion_tokens: int) -> bool:
    """Whether a loss, perhaps of another package, accepts options of these names with these values."""
    try:
        parse_method(body, max_completion_tokens=max_completion_tokens)
    except ConfigError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class _Line:
    """Settings of one number, by place; the choice is wanted inside, so an end that is the best is followed by more."""

    settings: dict[int, str]
    """Place → setting, in the order in which they are tried."""
    beyond: Callable[[int], str | None]
    """The setting of a place; None where the loss has none, which is an end that nothing lies beyond."""

    def extended(self, best: str) -> bool:
        """Add the setting next to the best one, if that is at an end and something lies beyond it."""
        place = next(place for place, setting in self.settings.items() if setting == best)
        for end, step in ((min(self.settings), -1), (max(self.settings), 1)):
            found = self.beyond(place + step) if place == end else None
            if found is not None and found not in self.settings.values():
                self.settings[place + step] = found
                return True
        return False


_MOST_STEPS = 8
"""Most doublings, or halvings, of a rate or a clip."""


def scaled(method: str, place: int, *, max_completion_tokens: int) -> str | None:
    """The method with its own clip, cap, floor or penalty times 2^place; itself at 0. None where it has none, sets it
    itself, or the loss refuses the value.

    Bounds from both sides widen: a lower bound on a ratio, such as IcePop's, is divided. A loss without a clip is the
    one of the widest, so −1 is a clip of .8. Shares and vetoes are left as they are.
    """
    if place == 0:
        return method
    parsed = parse_method(method, max_completion_tokens=max_completion_tokens)
    body, *added = parsed.text.split("+")
    given = {setting.partition("=")[0] for setting in body.split(":")[1:]}
    config = parsed.objective.config
    fields = {field.name for field in dataclasses.fields(config)}
    names = next((names for names, _ in KNOBS if set(names) <= fields), ())
    own = {name: getattr(config, name) for name in names}
    if not names or given & set(names) or abs(place) > _MOST_STEPS or (None in own.values() and place > 0):
        return None
    values = {name: _scaled(name, value, place) for name, value in own.items()}
    if values == own:
        return None
    other = body + "".join(f":{name}={value:g}" for name, value in values.items())
    return "+".join((other, *added)) if _accepted(other, max_completion_tokens) else None


def _scaled(name: str, value: float | None, place: int) -> float:
    if value is None:
        return 0.8 * 2.0 ** (place + 1)
    if name in ("veto", "share"):
        return value
    if name == "low":
        return value / 2.0**place
    # At a ratio of 0 a lower clip of 1 never binds.
    return min(1.0, value * 2.0**place) if name == "clip_low" else value * 2.0**place


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """One setting on the development seeds."""

    method: str
    greedy: float
    """Mean greedy reward over the delay laws: of the last three evaluations, and of a task that moves the area under
    the curve."""
    sampled: float
    collapsed: bool
    """Whether any seed collapsed under any law."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One method's settings as chosen, and all that were tried."""

    method: str
    """The method as given."""
    chosen: str
    """The setting for the delay laws: no collapse first, then greedy, then sampled reward."""
    on_policy: str
    """The setting for the on-policy run, chosen in the same way; of a task that moves the same."""
    tried: tuple[Tried, ...]
    """Under the delay laws."""
    tried_on_policy: tuple[Tried, ...]


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """Everything that a sweep's choices depend on but the method."""

    task: str
    delays: tuple[str, ...]
    """Full text of each law."""
    plan: TrainingPlan
    max_completion_tokens: int
    seeds: range = DEVELOPMENT_SEEDS
    """Those that choices are made on."""

    def grid(self, method: str, rates: Sequence[float] = RATES) -> list[str]:
        """See `grid`."""
        return grid(method, self.plan, max_completion_tokens=self.max_completion_tokens, rates=rates)

    def settings(self, results: ResultFile, method: str) -> list[str]:
        """Every setting to try, as far as the results say: the grid, and lower rates if the laws or on-policy runs want
        them; of a task that moves, see `_along_lines`."""
        if self._moves:
            return self._along_lines(results, method)
        settings, lowest = self.grid(method), min(RATES)
        at_lowest = self.grid(method, [lowest])
        while set(at_lowest) < set(settings) and lowest / 2 >= LEAST_RATE:
            if any(self._missing(results, setting) for setting in settings):
                break
            tried = [self._tried(results, settings, delays) for delays in (self.delays, (ON_POLICY,))]
            if not any(wants_lower(rows, at_lowest) for rows in tried):
                break
            lowest /= 2
            at_lowest = self.grid(method, [lowest])
            settings += at_lowest
        return settings

    def _along_lines(self, results: ResultFile, method: str) -> list[str]:
        """Learning rates, then clips or caps at the best rate, each until the best is not at an end of what was tried.

        One line after the other instead of a grid: the same budget reaches further.
        """
        parsed = parse_method(method, max_completion_tokens=self.max_completion_tokens)

        def at_rate(place: int) -> str | None:
            rate = 2.0**place * self.plan.learning_rate
            return f"{method}+lr={rate:g}" if abs(place) <= _MOST_STEPS and rate < 1 else None

        tried = dict[str, None]()
        best, first_rates = method, (0, 1, -1)
        if "lr" not in parsed.additions:
            rates = {place: setting for place in first_rates if (setting := at_rate(place))}
            line = _Line(settings=rates, beyond=at_rate)
            tried |= dict.fromkeys(rates.values())
            while found := self._best(results, list(line.settings.values())):
                if not line.extended(found):
                    break
                tried |= dict.fromkeys(line.settings.values())
            if found is None:
                return list(tried)
            best = found

        def with_clip(place: int, own: str = best) -> str | None:
            return scaled(own, place, max_completion_tokens=self.max_completion_tokens)

        clips = {place: setting for place in (0, -1, 1) if (setting := with_clip(place))}
        line = _Line(settings=clips, beyond=with_clip)
        tried |= dict.fromkeys(clips.values())
        while (found := self._best(results, list(line.settings.values()))) and line.extended(found):
            tried |= dict.fromkeys(line.settings.values())
        return list(tried)

    def _best(self, results: ResultFile, settings: Sequence[str]) -> str | None:
        """The best of the settings; None while one lacks results."""
        if any(self._missing(results, setting) for setting in settings):
            return None
        return best_of(self._tried(results, settings, self.delays))

    @property
    def _moves(self) -> bool:
        return environment_by_name(self.task).schedule is not None

    def runs(self, results: ResultFile, methods: Sequence[str]) -> list[tuple[str, str, str, TrainingPlan]]:
        """(task, method, delay, plan) of every run on the development seeds, as far as the results say."""
        settings = [setting for method in methods for setting in self.settings(results, method)]
        return [(self.task, setting, delay, self.plan) for setting in settings for delay in self._laws]

    @property
    def _laws(self) -> tuple[str, ...]:
        # What is chosen for a task that moves is used on policy too.
        return self.delays if self._moves else tuple(dict.fromkeys((ON_POLICY, *self.delays)))

    def _missing(self, results: ResultFile, setting: str) -> bool:
        runs = (Setting.of(self.task, setting, delay, self.plan) for delay in self._laws)
        return any(results.missing(run, self.seeds) for run in runs)

    def choose(self, results: ResultFile, method: str) -> Choice:
        """The best settings of a method by its results on the development seeds. ConfigError when one is missing."""
        settings = self.settings(results, method)
        delayed = self._tried(results, settings, self.delays)
        if self._moves:
            best = best_of(delayed)
            return Choice(method=method, chosen=best, on_policy=best, tried=tuple(delayed), tried_on_policy=())
        on_policy = self._tried(results, settings, (ON_POLICY,))
        return Choice(
            method=method,
            chosen=best_of(delayed),
            on_policy=best_of(on_policy),
            tried=tuple(delayed),
            tried_on_policy=tuple(on_policy),
        )

    def _tried(self, results: ResultFile, settings: Sequence[str], delays: Sequence[str]) -> list[Tried]:
        rows = []
        for setting in settings:
            found, heights = list[SeedResult](), list[float]()
            for delay in delays:
                here = results.of(Setting.of(self.task, setting, delay, self.plan), self.seeds)
                found += here
                heights += self._heights(here, delay)
            if len(found) < len(delays) * len(self.seeds):
                raise ConfigError(f"{setting} lacks development runs", remedy="Run the sweep again; it continues.")
            rows.append(
                Tried(
                    method=setting,
                    greedy=fmean(heights),
                    sampled=fmean(result.last for result in found),
                    collapsed=any(result.collapsed_at is not None for result in found),
                )
            )
        return rows

    def _heights(self, found: Sequence[SeedResult], delay: str) -> list[float]:
        """Greedy reward of each seed, as it is chosen by."""
        if self._moves:
            return areas_of(found, parse_law(delay).settled)
        return [result.last_of("greedy") for result in found]


def best_of(tried: Sequence[Tried]) -> str:
    """The setting to choose: no collapse first, then greedy, then sampled reward."""
    # Of equals the first, which is the one nearest the defaults.
    return max(tried, key=lambda row: (not row.collapsed, row.greedy, row.sampled)).method


def wants_lower(tried: Sequence[Tried], at_lowest: Collection[str]) -> bool:
    """Whether a lower rate may do better: the best setting has the lowest, or every one collapses."""
    return best_of(tried) in at_lowest or all(row.collapsed for row in tried)


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """The settings whose reporting runs were begun."""

    task: str
    updates: int
    learning_rate: float
    method: str
    chosen: str
    on_policy: str


def settle(path: Path, sweep: SweepPlan, choices: Sequence[Choice]) -> None:
    """Record the choices in `path` before their reporting runs begin, so that the reporting seeds are used once.

    ConfigError when a method was reported with another choice: its reporting seeds are no longer unseen.
    """
    try:
        known = msgspec.json.decode(path.read_bytes(), type=list[_Record]) if path.exists() else []
    except msgspec.MsgspecError as error:
        raise IntegrityError(f"{path}: {error}", remedy="Restore the file, or use another --out.") from error
    for choice in choices:
        record = _Record(
            task=sweep.task,
            updates=sweep.plan.updates,
            learning_rate=sweep.plan.learning_rate,
            method=choice.method,
            chosen=choice.chosen,
            on_policy=choice.on_policy,
        )
        for earlier in known:
            same = all(getattr(earlier, name) == getattr(record, name) for name in _Record.__struct_fields__[:4])
            if same and earlier != record:
                raise ConfigError(
                    f"{choice.method} was reported as {earlier.chosen}, and the sweep now chooses {record.chosen}",
                    remedy="Report on unseen seeds with --seed in a new --out, or repeat the first sweep's --delays.",
                )
        if record not in known:
            known.append(record)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(known)) + b"\n")
        part.replace(path)
    except OSError as error:
        raise MachineError(f"cannot write to {path}: {error.strerror}", remedy=UNWRITABLE) from error
