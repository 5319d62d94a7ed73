"""Settings as a file are read back as the same settings, whatever was stated."""

import tomllib
from pathlib import Path

import pytest

from lipcert.cli.sources import effective_settings
from lipcert.settings.settings import Settings
from lipcert.settings.written import settings_toml

STATED = (
    Settings(),
    Settings(input_norm=1.0, batch_size=64, constraint="spectral:1.5"),
    Settings(input_box=(-1.0, 1.0), mechanism="weight-clipping", scope="point",
             constraints={"a.*": "frobenius:2"}),
    Settings(input_norm={"a": 1.0}, input_box={"b": (0.0, 2.0)}, loss="bce"),
    Settings(input_norm=1.0, mechanism="backprop-clipping", cotangent_clip=1.0,
             input_clips={"fc": None, "[0-9]": 2.0}),
    Settings(input_norm=1.0, freeze=("é", '"quoted"', "😀\x7f"), as_exported=True),
    Settings(input_norm=1.0, loss="cls=cross-entropy,reg=mse", loss_weight={"reg": 0.5}),
    Settings(input_norm=1.0, batch_size=64, reduction="sum", noise_multipliers={"all": 2.0},
             allocation="custom"),
)  # fmt: skip


@pytest.mark.parametrize("stated", STATED)
def test_a_file_is_read_back_as_the_same_settings(stated: Settings, tmp_path: Path) -> None:
    file = tmp_path / "lipcert.toml"
    file.write_text(settings_toml(stated, "a comment"), encoding="utf-8")
    assert effective_settings({}, {}, file).settings == stated


def test_what_follows_from_other_settings_is_left_out() -> None:
    text = settings_toml(Settings(input_norm=1.0, constraint="spectral:1", batch_size=8), "head")
    assert tomllib.loads(text) == {"input-norm": 1.0, "constraint": "spectral:1", "batch-size": 8}
