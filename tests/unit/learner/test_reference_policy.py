"""Reference policy: a moving average needs weights whose small steps are not rounded away."""

from __future__ import annotations

import pytest
import torch

from p2prl.errors import ConfigError
from p2prl.learner.training.reference_policy import Reference, ReferenceConfig
from p2prl.models.small_models.tiny_models import tiny_model


def test_a_moving_reference_is_refused_in_16_bits() -> None:
    model = tiny_model().model.to(torch.bfloat16)
    with pytest.raises(ConfigError, match="rounded away"):
        Reference(model, ReferenceConfig(ema_rate=0.001), temperature=1.0)
    Reference(model, ReferenceConfig(), temperature=1.0)


def test_a_moving_reference_goes_its_share_of_the_way() -> None:
    model = tiny_model().model
    reference = Reference(model, ReferenceConfig(ema_rate=0.25), temperature=1.0)
    before = {name: tensor.clone() for name, tensor in reference.tensors().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    reference.follow(list(model.parameters()))
    for name, moved in reference.tensors().items():
        torch.testing.assert_close(moved, before[name] + 0.25)
