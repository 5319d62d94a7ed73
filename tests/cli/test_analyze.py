"""`lipcert analyze`: options reach the engine, results reach stdout and files."""

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from lipcert.cli.main import cli
from lipcert.settings.settings import ConstraintSpec
from tests.cli.engine import Engine, install
from tests.cli.issued import call


@pytest.fixture(name="engine")
def _engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    monkeypatch.chdir(tmp_path)
    return install(monkeypatch)


run = partial(call, "analyze", "m.onnx")


def test_every_option_reaches_the_engine(engine: Engine) -> None:
    words = (
        "--loss mse --classes 10 --temperature 2 --label-smoothing 0.1 --label-norm 3 --margin 4 "
        "--huber-delta 5 --focal-gamma 2 --hkr-weight 6 --cosine-floor 7 --output-reduction sum "
        "--half --loss-clip 8 --input-norm 9 --input-box -1 1 --scope constraint-set "
        "--constraint frobenius:3 --bias-norm 2 --trainable a* --trainable b --freeze c "
        "--group parameter --noise-multiplier 1.5 --allocation optimal --neighbours replace-one "
        "--reduction mean --batch-size 64 --tier quick --output logits --as-exported"
    )
    assert run(*words.split()).exit_code == 0
    settings = engine.settings
    assert (settings.loss, settings.classes, settings.temperature) == ("mse", 10, 2.0)
    assert (settings.label_smoothing, settings.label_norm, settings.margin) == (0.1, 3.0, 4.0)
    assert (settings.huber_delta, settings.focal_gamma, settings.hkr_weight) == (5.0, 2.0, 6.0)
    assert (settings.cosine_floor, settings.output_reduction) == (7.0, "sum")
    assert (settings.half, settings.loss_clip, settings.input_norm) == (True, 8.0, 9.0)
    assert (settings.input_box, settings.scope) == ((-1.0, 1.0), "constraint-set")
    assert settings.constraint == ConstraintSpec("frobenius", 3.0)
    assert (settings.bias_norm, settings.trainable, settings.freeze) == (2.0, ("a*", "b"), ("c",))
    assert (settings.group, settings.noise_multiplier) == ("parameter", 1.5)
    assert (settings.allocation, settings.neighbours) == ("optimal", "replace-one")
    assert (settings.reduction, settings.batch_size) == ("mean", 64)
    assert (settings.tier, settings.output, settings.as_exported) == ("quick", "logits", True)
    assert engine.loaded_under is engine.settings


def test_results_go_into_files(engine: Engine) -> None:
    result = run("--format", "json", "-o", "a.json", "--report", "csv=b.csv", "--report", "text=c")
    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads(Path("a.json").read_text())["network"]["grad_norm"] == 40.2
    assert Path("b.csv").read_text().startswith("parameter,")
    assert "Answer" in Path("c").read_text()
    assert sorted(path.name for path in Path().iterdir()) == ["a.json", "b.csv", "c"]


def test_an_old_file_survives_a_failure(engine: Engine) -> None:
    Path("a.json").write_text("old")
    engine.failure = RuntimeError("boom")
    assert run("--format", "json", "-o", "a.json").exit_code == 4
    assert Path("a.json").read_text() == "old"


def test_colour_only_where_asked_for(engine: Engine) -> None:
    assert "\x1b[" not in run().stdout
    assert "\x1b[" in run("--color", "always").stdout
    assert "\x1b[" in run(FORCE_COLOR="1").stdout
    assert "\x1b[" not in run(FORCE_COLOR="1", NO_COLOR="1").stdout
    assert "\x1b[" not in run("--format", "json", "--color", "always").stdout


def test_narrow_streams_do_not_crash(engine: Engine) -> None:
    runner = CliRunner(charset="ascii")
    result = runner.invoke(cli, ["analyze", "m.onnx"])
    assert result.exit_code == 0
