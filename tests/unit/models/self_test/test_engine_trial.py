"""An engine that errs is told from a machine that errs, by what transformers computes on the same device."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from p2prl.errors import IntegrityError, MachineError
from p2prl.models.engines import registry as engine_registry
from p2prl.models.engines.engine_names import ChosenEngine
from p2prl.models.engines.transformers import sampler as transformers_sampler
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import RunModel, read_run_model
from p2prl.models.sampler_port import Sampler
from p2prl.models.self_test.golden_creation import golden_files
from p2prl.models.self_test.trial import build_tested_sampler
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import layout_of

CPU = torch.device("cpu")
AUTO = ChosenEngine("other", "as the fastest", fallback="transformers")
ASKED = ChosenEngine("other", "as asked")

Change = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def run() -> RunModel:
    loaded = tiny_model(seed=1)
    layout = layout_of(loaded.model, "float32")
    files = export_run_files(loaded)
    files |= golden_files(files, layout, dtype="float32", temperature=0.8)
    return read_run_model(files, layout_digest=layout.digest, weight_bytes=layout.size_bytes, dtype="float32")


class OtherSampler:
    """Another engine: its logits are changed, or it finds by itself that they are wrong."""

    def __init__(self, run: RunModel, change: Change | None) -> None:
        policy = PolicyModel(run.build(device=CPU, dtype="float32"), run.layout)
        if change is not None:
            policy.model.lm_head.register_forward_hook(lambda _, __, logits: change(logits))
        self._inner = TransformersSampler(policy)
        self._fails_its_check = change is None

    def swap(self, staged: Any) -> None:
        if self._fails_its_check:
            raise IntegrityError("version 0 gives other logits than its weights")
        self._inner.swap(staged)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Engines:
    """Builds `OtherSampler` as `other`, and notes which are alive when transformers is built."""

    def __init__(self, change: Change | None) -> None:
        self.change = change
        self.built: list[str] = []
        self.alive_beside_transformers = 0
        self._others: list[weakref.ref[OtherSampler]] = []

    def get(self, name: str) -> Any:
        return self._other if name == "other" else self._transformers

    def _other(self, run: RunModel, **_: Any) -> Any:
        sampler = OtherSampler(run, self.change)
        self.built.append("other")
        self._others.append(weakref.ref(sampler))
        return sampler

    def _transformers(self, run: RunModel, **options: Any) -> TransformersSampler:
        self.built.append("transformers")
        self.alive_beside_transformers += sum(each() is not None for each in self._others)
        return transformers_sampler.build_sampler(run, **options)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change | None], Engines]:
    def use(change: Change | None) -> Engines:
        made = Engines(change)
        monkeypatch.setattr(engine_registry, "ENGINES", made)
        return made

    return use


def built(run: RunModel, engine: ChosenEngine, told: list[str]) -> Sampler:
    return build_tested_sampler(engine, run, device=CPU, dtype="float32", temperature=0.8, on_notice=told.append)


def noise(deviation: float) -> Change:
    generator = torch.Generator().manual_seed(3)
    return lambda logits: logits + deviation * torch.randn(logits.shape, generator=generator)


WRONG: dict[str, Change | None] = {"other tokens": lambda logits: logits.roll(1, -1), "its own check": None}


def test_a_sound_engine_is_used_and_nothing_else_is_built(run: RunModel, engines: Any) -> None:
    seen, told = engines(lambda logits: logits), list[str]()
    assert isinstance(built(run, AUTO, told), OtherSampler)
    assert seen.built == ["other"]
    assert len(told) == 1
    assert told[0].startswith("Self-test passed")


@pytest.mark.parametrize("kind", WRONG)
def test_an_engine_taken_by_default_that_errs_is_replaced(kind: str, run: RunModel, engines: Any) -> None:
    seen, told = engines(WRONG[kind]), list[str]()
    assert isinstance(built(run, AUTO, told), TransformersSampler)
    assert seen.built == ["other", "transformers"]
    assert seen.alive_beside_transformers == 0, "its memory is free before the other needs it"
    assert "the fault is in other, not in this machine. Sampling with transformers instead." in told[-1]
    assert not any("overclock" in text for text in told)


def test_an_engine_that_breaks_for_good_is_replaced_too(
    run: RunModel, engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that were in flight behind the one that failed fail as well."""

    def fail(_: OtherSampler) -> Any:
        raise MachineError("CUDA out of memory")

    monkeypatch.setattr(OtherSampler, "step", fail, raising=False)
    monkeypatch.setattr(OtherSampler, "sleep", fail, raising=False)
    seen, told = engines(lambda logits: logits), list[str]()
    assert isinstance(built(run, AUTO, told), TransformersSampler)
    assert seen.alive_beside_transformers == 0
    assert "other fails in its self-test: CUDA out of memory" in told[-1]


@pytest.mark.parametrize("kind", WRONG)
def test_an_engine_asked_for_that_errs_ends_with_the_cause(kind: str, run: RunModel, engines: Any) -> None:
    engines(WRONG[kind])
    with pytest.raises(MachineError, match=r"^other .*, while transformers passes on the same device") as error:
        built(run, ASKED, [])
    assert error.value.remedy.startswith("Use --engine transformers.")
    assert "overclock" not in error.value.remedy


def test_a_noisy_engine_on_a_quiet_machine_is_at_fault(run: RunModel, engines: Any) -> None:
    engines(noise(0.05))
    told: list[str] = []
    assert isinstance(built(run, AUTO, told), TransformersSampler)
    assert "other computes with a noise of" in told[-1]
    engines(noise(0.05))
    with pytest.raises(MachineError, match="the fault is in other"):
        built(run, ASKED, [])


@pytest.mark.parametrize("engine", [AUTO, ASKED], ids=["auto", "asked"])
def test_a_machine_that_errs_in_both_is_told_so(
    engine: ChosenEngine, run: RunModel, engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = PolicyModel.forward
    monkeypatch.setattr(PolicyModel, "forward", lambda *args, **kwargs: honest(*args, **kwargs).roll(1, -1))
    seen = engines(lambda logits: logits)
    with pytest.raises(MachineError, match=r"^this machine computes other results") as error:
        built(run, engine, [])
    assert seen.built == ["other", "transformers"]
    assert "overclock" in error.value.remedy


@pytest.mark.parametrize(
    ("engine", "kept"), [(AUTO, TransformersSampler), (ASKED, OtherSampler)], ids=["auto", "asked"]
)
def test_a_machine_that_is_noisy_in_both_goes_on_and_is_told_so(
    engine: ChosenEngine, kept: type, run: RunModel, engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, blur = PolicyModel.forward, noise(0.05)
    monkeypatch.setattr(PolicyModel, "forward", lambda *args, **kwargs: blur(honest(*args, **kwargs)))
    engines(lambda logits: logits)
    told: list[str] = []
    assert isinstance(built(run, engine, told), kept)
    assert "this machine computes with a noise" in told[-1]
    assert "overclock" in told[-1]


def test_without_room_for_transformers_nobody_is_blamed(
    run: RunModel, engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = engines(WRONG["other tokens"])

    def refuse(*_: Any, **__: Any) -> Any:
        raise MachineError("the weights need 3 GB", remedy="Free some memory.")

    monkeypatch.setattr(transformers_sampler, "build_sampler", refuse)
    with pytest.raises(MachineError, match=r"cannot be told, as transformers does not run here: the weights") as error:
        built(run, AUTO, [])
    assert seen.built == ["other", "transformers"]
    assert error.value.remedy.startswith("Free some memory. Undo any overclock")
