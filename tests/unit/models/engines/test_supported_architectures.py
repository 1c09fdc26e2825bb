"""The table of architectures: each is transformers' own causal model, the documentation has it, refusals name it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.models.base_model.architectures import ARCHITECTURES, architecture_table
from p2prl.models.base_model.pretrained import check_architecture
from p2prl.models.run_files.checks import check_config

DOC = Path(__file__).parents[4] / "docs" / "researchers.md"


def test_the_documentation_has_the_table() -> None:
    assert f"\n\n{architecture_table()}\n\n" in DOC.read_text()


def test_each_is_a_causal_model_of_transformers() -> None:
    assert set(ARCHITECTURES) <= set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert list(ARCHITECTURES) == sorted(ARCHITECTURES)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "t5"}, "no causal language model of the type 't5'"),
        ({"model_type": "my_own"}, "no causal language model of the type 'my_own'"),
        ({"model_type": ["llama"]}, "no causal language model"),
        ({}, "no causal language model"),
        ({"model_type": "gemma3"}, "'gemma3' is a model of several parts"),
        ({"model_type": "llama4"}, "'llama4' is a model of several parts"),
    ],
)
def test_others_are_refused_with_the_reason_before_any_weights_are_read(
    tmp_path: Path, config: dict[str, object], said: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=said) as caught:
        check_architecture(tmp_path, "NAME")
    assert all(kind in caught.value.remedy for kind in ARCHITECTURES)
    with pytest.raises(RemoteProtocolError, match=said):
        check_config(config)


@pytest.mark.parametrize("kind", [*ARCHITECTURES, "hyperclovax", "mamba2"])
def test_decoders_of_transformers_are_not_refused_by_name(tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    check_architecture(tmp_path, "NAME")
    check_config({"model_type": kind})
