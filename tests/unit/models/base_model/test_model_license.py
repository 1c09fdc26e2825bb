"""License of a model directory: read from the metadata of its card and from nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.models.base_model.base_model_card import NOT_STATED, model_license


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("---\nlicense: mit\n---\n# Model\n", "mit"),
        ("\ufeff---\r\nlicense: mit\r\n---\r\n", "mit"),
        ("---\nlicense: mit\n---", "mit"),
        ("---\ntags: [x]\nlicense: 'apache-2.0'   # as the base\nlanguage: en\n---\n", "apache-2.0"),
        ('---\nlicense: other\nlicense_name: "qwen-research"\n---\n', "qwen-research"),
        ("---\nlicense: other\n---\n", "other"),
        ("---\nlicense_name: custom\n---\n", NOT_STATED),
        ("---\nbase:\n  license: mit\n---\n", NOT_STATED),
        ("---\nlanguage: en\n---\nlicense: mit\n", NOT_STATED),
        ("# Model\nlicense: mit\n", NOT_STATED),
        ("# Model\n---\nlicense: mit\n---\n", NOT_STATED),
        ("---\nlicense: mit\n", NOT_STATED),
        ("---\nlicense: m\x1b[31mit\n---\n", NOT_STATED),
        ("", NOT_STATED),
    ],
)
def test_the_license_is_the_one_in_the_metadata(card: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(card)
    assert model_license(tmp_path) == expected


def test_no_card_and_no_directory_state_none(tmp_path: Path) -> None:
    assert model_license(tmp_path) == NOT_STATED
    assert model_license(tmp_path / "absent") == NOT_STATED
