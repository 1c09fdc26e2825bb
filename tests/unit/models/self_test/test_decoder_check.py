"""Architectures that no test has: a decoder passes, and whatever a run cannot replay is refused with what differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from p2prl.errors import ConfigError
from p2prl.models.base_model.architectures import ARCHITECTURES, architecture_fault
from p2prl.models.self_test.decoder_check import check_decoder
from p2prl_lab.testing.small_architectures import small_model

UNTESTED = "hyperclovax"


def bert() -> Any:
    config = AutoConfig.for_model(
        "bert", vocab_size=18, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def changed(change: Any) -> Any:
    """A decoder whose logits are changed by `change(logits, arguments)`."""
    model = small_model("qwen2")
    plain = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        made = plain(*args, **kwargs)
        made.logits = change(made.logits, kwargs)
        return made

    model.forward = forward
    return model


def test_decoders_pass_though_no_test_names_them() -> None:
    assert UNTESTED not in ARCHITECTURES
    assert architecture_fault(UNTESTED) == ""
    check_decoder(small_model(UNTESTED))


def test_a_model_that_attends_ahead_is_refused() -> None:
    with pytest.raises(ConfigError, match="'bert': its logits depend on tokens that come later"):
        check_decoder(bert())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda logits, _: logits + 0.1 * logits.mean(dim=0).roll(1) * (len(logits) > 1), "other rows of a batch"),
        (lambda logits, asked: logits.roll(1, -1) if asked.get("past_key_values") else logits, "with a cache"),
        (lambda logits, _: logits * float("nan"), "are not numbers"),
        (lambda logits, _: logits[..., :-1], "the shape"),
    ],
)
def test_models_that_compute_otherwise_at_times_are_refused(change: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_decoder(changed(change))


def test_a_model_that_does_not_run_is_refused_with_the_reason() -> None:
    def fail(logits: Any, asked: Any) -> Any:
        raise ValueError("needs\nimages")

    with pytest.raises(ConfigError, match="ValueError: needs images"):
        check_decoder(changed(fail))
