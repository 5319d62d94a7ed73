"""Settings come from four places, the nearest wins, and no key is ignored."""

import json
from functools import partial
from pathlib import Path

import pytest

from lipcert.cli.sources import KNOBS, TABLES
from lipcert.settings.settings import FOUND, Settings
from tests.cli.issued import call


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


show = partial(call, "config", "show")


def value(key: str, *words: str, **environment: str) -> tuple[object, str]:
    result = show("--format", "json", *words, **environment)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)["settings"][key]
    return found["value"], found["source"]


def test_every_field_has_a_knob() -> None:
    fields = set(Settings.__dataclass_fields__) - FOUND
    assert fields == {*(knob.field for knob in KNOBS), *(key.replace("-", "_") for key in TABLES)}


def test_precedence() -> None:
    assert value("temperature") == (None, "default")
    Path("pyproject.toml").write_text("[tool.lipcert]\ntemperature = 2\ninput-norm = 1.5\n")
    assert value("temperature")[0] == 2.0
    assert value("temperature")[1].endswith("pyproject.toml [tool.lipcert]")
    environment = {"LIPCERT_TEMPERATURE": "3"}
    assert value("temperature", **environment) == (3.0, "environment LIPCERT_TEMPERATURE")
    assert value("temperature", "--temperature", "4", **environment) == (4.0, "command line")
    assert value("input-norm", "--temperature", "4", **environment)[0] == 1.5


def test_a_file_further_up_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("lipcert.toml").write_text('loss = "mse"\n[constraints]\n"fc.*" = "spectral:1"\n')
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert value("loss")[0] == "mse"
    assert value("constraints")[0] == {"fc.*": "spectral:1"}
    assert value("scope") == ("constraint-set", "derived from other settings (auto)")


def test_an_explicit_file_wins_over_the_search() -> None:
    Path("lipcert.toml").write_text("temperature = 2\n")
    Path("other.toml").write_text("temperature = 5\n")
    assert value("temperature", "--config", "other.toml")[0] == 5.0


def test_lists_and_switches() -> None:
    Path("lipcert.toml").write_text(
        'input-box = [0, 255]\ntrainable = ["a", "b"]\nas-exported = true\n'
    )
    assert value("input-box")[0] == [0.0, 255.0]
    assert value("trainable")[0] == ["a", "b"]
    assert value("as-exported")[0] is True
    assert value("as-exported", "--no-as-exported")[0] is False
    assert value("input-box", LIPCERT_INPUT_BOX="-1,1")[0] == [-1.0, 1.0]
    assert value("trainable", LIPCERT_TRAINABLE="c d")[0] == ["c", "d"]
    assert value("half", LIPCERT_HALF="yes")[0] is True


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("input_norm = 1", ["input_norm", "input-norm", "lipcert.toml"]),
        ("temprature = 1", ["temprature", "temperature"]),
        ('temperature = "hot"', ["key temperature", "not a number"]),
        ("input-box = [1, 0]", ["input-box", "empty"]),
        ('as-exported = "maybe"', ["true nor false"]),
        ("constraints = 1", ["constraints", "table"]),
        ('[constraints]\nfc = "x"', ["constraint such as"]),
        ("temperature =", ["lipcert.toml"]),
    ],
)
def test_a_wrong_file_is_2_and_says_where(toml: str, words: list[str]) -> None:
    Path("lipcert.toml").write_text(toml)
    result = show()
    assert result.exit_code == 2
    assert all(word in result.stderr for word in words), result.stderr


def test_unknown_variables_are_errors() -> None:
    result = show(LIPCERT_INPUT_NROM="1")
    assert result.exit_code == 2
    assert "did you mean 'LIPCERT_INPUT_NORM'" in result.stderr
    assert show(LIPCERT_DEBUG="1").exit_code == 0
    assert "LIPCERT_INPUT_NORM" in show(LIPCERT_INPUT_NORM="x").stderr


def test_two_files_are_ambiguous() -> None:
    Path("lipcert.toml").write_text("")
    Path("pyproject.toml").write_text("[tool.lipcert]\n")
    result = show()
    assert result.exit_code == 2
    assert "keep one" in result.stderr


def test_a_missing_file_is_2() -> None:
    assert show("--config", "none.toml").exit_code == 2


def test_a_pyproject_of_somebody_else_is_no_configuration() -> None:
    Path("pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert value("loss") == ("auto", "default")


def test_text_shows_value_and_source() -> None:
    lines = show("--input-norm", "3").stdout.splitlines()
    assert len(lines) == len(KNOBS) + len(TABLES)
    (line,) = [line for line in lines if line.startswith("input-norm ")]
    assert line.split() == ["input-norm", "3.0", "command", "line"]
