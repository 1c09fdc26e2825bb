"""vLLM in this process: its bars become stages of the start, and its faults a cause. Needs no vLLM."""

from __future__ import annotations

import pytest
import torch
from tqdm import tqdm as plain_bar
from tqdm.auto import tqdm as chosen_bar

from p2prl.errors import MachineError
from p2prl.models.engines.start_stages import stages_told, tell_stage
from p2prl.models.engines.vllm.library import bars_as_stages, require_exact_products


def test_bars_are_told_as_stages_and_none_reaches_the_screen(capfd: pytest.CaptureFixture[str]) -> None:
    stages: list[str] = []
    with stages_told(stages.append), bars_as_stages():
        # As vLLM's `cudagraph_utils.py`, and its `jit_warmup.py`, which TQDM_DISABLE does not reach.
        assert list(plain_bar([7, 8], desc="Capturing CUDA graphs (FULL)")) == [7, 8]
        with plain_bar(iter("ab"), desc="JIT kernel warmup", disable=False, unit="kernel") as progress:
            for _ in progress:
                progress.set_postfix_str("kernel", refresh=False)
        by_hand = chosen_bar(total=3, desc="DeepGEMM warmup")
        by_hand.update(2)
        by_hand.close()
    assert capfd.readouterr().err == ""
    assert stages == [
        "vLLM: Capturing CUDA graphs (FULL), 1 of 2",
        "vLLM: Capturing CUDA graphs (FULL), 2 of 2",
        "vLLM: JIT kernel warmup, 1",
        "vLLM: JIT kernel warmup, 2",
    ]
    list(plain_bar([1], desc="another's"))
    assert "another's" in capfd.readouterr().err, "only vLLM's are hidden"


def test_stages_go_to_the_innermost_listener_and_to_nobody_without_one() -> None:
    outer: list[str] = []
    inner: list[str] = []
    tell_stage("nobody listens")
    with stages_told(outer.append):
        with stages_told(inner.append):
            tell_stage("b")
        tell_stage("a")
    assert (outer, inner) == (["a"], ["b"])


def test_a_machine_without_a_working_triton_falls_back_to_another_engine() -> None:
    """Without Triton, this card or a compiler, each of which raises an error of its own."""
    with pytest.raises(MachineError, match="Triton, which vLLM computes with, does not work here") as error:
        require_exact_products(torch.device("cuda", 99))
    assert "--engine transformers" in error.value.remedy
