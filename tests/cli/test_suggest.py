"""`lipcert suggest`: what it prints, what it writes, and its exit code."""

import json
import shlex
from functools import cache

import numpy as np
import pytest

from lipcert.cli.sources import effective_settings
from tests.commands import ROOT, lipcert

MODEL = str(ROOT / "models" / "digits_mlp.onnx")
RUN = shlex.split(
    "--input-box 0 1 --dataset-size 60000 --batch-size 512 --epochs 10 --sampling poisson "
    "--noise-multiplier 1 --delta 1e-6 --tier quick"
)


JSON = ("--format", "json")


@cache
def document() -> dict[str, object]:
    done = lipcert(["suggest", MODEL, *RUN, "--format", "json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_a_suggested_setting_is_what_analyze_says(tmp_path) -> None:
    """The settings of a suggestion, on the command line, have the bound that it states."""
    found = document()
    own = next(item for item in found["suggestions"] if item["change"].endswith("C = 1"))
    words = ["--mechanism", "gradient-clipping", "--clip-norm", str(own["settings"]["clip-norm"])]
    done = lipcert(["analyze", MODEL, *RUN, *words, "--format", "json"], tmp_path)
    analysis = json.loads(done.stdout)
    assert analysis["network"]["grad_norm"] == pytest.approx(own["grad_norm"], rel=1e-9)
    assert analysis["network"]["sensitivity"] == pytest.approx(own["sensitivity"], rel=1e-9)
    assert analysis["usefulness"]["noise"] == pytest.approx(own["noise"], rel=1e-9)


def test_the_report_begins_with_how_things_stand() -> None:
    done = lipcert(["suggest", MODEL, *RUN])
    beginning = " ".join(done.stdout.partition("  signal  ")[0].split())
    assert beginning.startswith(MODEL)
    assert beginning.index(" Now, mechanism none: G ") < beginning.index(" Do: ")
    headings = (
        "Recipe: before and after each change",
        "How",
        "Then",
        "The best that was found under each mechanism",
        "Changes, each by itself, by noise over signal (--format json says how)",
    )
    places = [done.stdout.index(f"\n{heading}\n") for heading in headings]
    assert places == sorted(places)
    assert f"lipcert analyze {MODEL} --config recipe.toml" in done.stdout
    assert "make_private(model, optimizer, loader, " in done.stdout


@pytest.mark.nightly
def test_the_settings_of_the_recipe_are_written_and_read_again(tmp_path) -> None:
    file = tmp_path / "recipe.toml"
    words = ["suggest", MODEL, *RUN, "--format", "json", "--apply", str(file)]
    done = lipcert(words)
    assert done.exit_code == 0
    assert str(file) in done.stderr
    stated = json.loads(done.stdout)["recipe"]
    settings = effective_settings({}, {}, file).settings
    for key, value in stated["settings"].items():
        own = getattr(settings, key.replace("-", "_"))
        assert str(own) == str(value) or own == value or dict(own) == value, key
    again = lipcert(["analyze", MODEL, "--config", str(file), "--format", "json"], tmp_path)
    found = json.loads(again.stdout)["network"]["grad_norm"]
    if all(change["is_setting"] for change in stated["changes"]):
        assert found == pytest.approx(stated["grad_norm"], rel=1e-9)
    refused = lipcert(words)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert lipcert([*words, "--force", "--budget", "0.01"]).exit_code == 0


@pytest.mark.nightly
def test_private_data_are_said_to_cost_privacy(tmp_path) -> None:
    file = tmp_path / "data.npz"
    random = np.random.default_rng(0)
    np.savez(file, x=random.random((8, 64)), y=random.integers(10, size=8))
    words = ["suggest", MODEL, *RUN, "--data", str(file), "--budget", "2"]
    assert "costs privacy that no ε" in " ".join(lipcert(words).stdout.split())
    np.savez(file, x=255 * random.random((8, 64)), y=random.integers(10, size=8))
    assert "STOP: 8 of 8 examples" in " ".join(lipcert(words).stdout.split())


@pytest.mark.nightly
def test_a_budget_ends_it_and_what_is_missing_is_said() -> None:
    done = lipcert(["suggest", MODEL, *RUN, "--budget", "0.01"])
    assert "no time was left for" in " ".join(done.stdout.split())
    document = json.loads(lipcert(["suggest", MODEL, *RUN, "--budget", "0.01", *JSON]).stdout)
    assert [item["mechanism"] for item in document["suggestions"]] == ["gradient-clipping"]
    assert document["clipping"]["noise"] == document["suggestions"][0]["noise"]
