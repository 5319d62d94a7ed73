"""`lipcert privacy`: the three questions, declarations, an analysis as source, exit codes."""

import json
from dataclasses import replace

import pytest

from lipcert.privacy.account import account_for
from lipcert.privacy.accounting import epsilon, selection_epsilon
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.privacy.selection import Law
from lipcert.process.progress import ProgressReport
from lipcert.report.analysis import analysis_json
from tests.cli import issued
from tests.report.samples import sample

RUN = ["--dataset-size", "1000", "--batch-size", "50", "--delta", "1e-5", "--sampling", "poisson"]
PLAN = TrainingPlan(1000, Sampling.POISSON, 1e-5, 50, 40)


def call(*words: str) -> tuple[int, str, str]:
    result = issued.call("privacy", *words)
    return result.exit_code, result.stdout, result.stderr


def found(*words: str) -> dict:
    code, out, err = call(*words, "--format", "json")
    assert code == 0, err
    return json.loads(out)


def test_epsilon_of_a_noise_multiplier() -> None:
    result = found(*RUN, "--noise-multiplier", "1.5", "--steps", "40")
    assert result["solved_for"] == "epsilon"
    assert result["privacy"]["epsilon"] == epsilon(PLAN, 1.5)
    same = found(*RUN, "--noise-multiplier", "1.5", "--epochs", "2")
    assert same["privacy"]["epsilon"] == result["privacy"]["epsilon"]


def test_several_trials_have_three_readings() -> None:
    words = [*RUN, "--noise-multiplier", "1.5", "--steps", "40", "--trials", "4"]
    run = found(*words)["privacy"]
    assert (run["trials"], run["steps"]) == (4, 40)
    assert run["epsilon"] == epsilon(replace(PLAN, trials=4), 1.5)
    assert run["selection"]["one_trial"] == epsilon(PLAN, 1.5)
    best = {law.value: selection_epsilon(replace(PLAN, trials=4), 1.5, law) for law in Law}
    assert run["selection"]["best_of"] == best
    assert run["selection"]["one_trial"] < min(best.values()) < max(best.values()) < run["epsilon"]
    text = call(*words)[1]
    assert "4 such runs together are" in text
    assert "K and the others stay secret" in " ".join(text.split())
    assert {"trials", "selection"}.isdisjoint(found(*words[:-2])["privacy"])


def test_noise_multiplier_of_an_epsilon() -> None:
    result = found(*RUN, "--target-epsilon", "2", "--steps", "40")
    assert result["solved_for"] == "noise_multiplier"
    assert 1.998 <= result["privacy"]["epsilon"] <= 2.0
    assert epsilon(PLAN, result["privacy"]["noise_multiplier"]) == result["privacy"]["epsilon"]


@pytest.mark.nightly
def test_steps_of_an_epsilon() -> None:
    result = found(*RUN, "--target-epsilon", "2", "--noise-multiplier", "1.5")
    steps = result["privacy"]["steps"]
    assert result["solved_for"] == "steps"
    assert epsilon(PLAN.with_steps(steps), 1.5) <= 2.0 < epsilon(PLAN.with_steps(steps + 1), 1.5)


def test_an_accountant_and_curves_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, int, int]] = []
    monkeypatch.setattr(ProgressReport, "observe", lambda _, *counts: shown.append(counts))
    words = [*RUN, "--noise-multiplier", "1.5", "--steps", "40", "--accountant", "rdp"]
    result = found(*words, "--curve", "steps", "--curve", "noise-multiplier")
    assert result["privacy"]["accountant"] == "rdp"
    assert set(result["curves"]) == {"steps", "noise-multiplier"}
    assert result["curves"]["steps"][-1]["epsilon"] == result["privacy"]["epsilon"]
    ends = [total for _, done, total in shown if done == total]
    assert ends == [len(result["curves"][name]) for name in ("steps", "noise-multiplier")]


def test_text_and_csv(tmp_path) -> None:
    words = [*RUN, "--noise-multiplier", "1.5", "--steps", "40"]
    code, out, _ = call(*words)
    assert code == 0
    assert out.startswith("The run is (ε, δ)-differentially private with ε = ")
    code, out, _ = call(*words, "--format", "csv", "-o", str(tmp_path / "run.csv"))
    assert (code, out) == (0, "")
    assert (tmp_path / "run.csv").read_text().startswith("row,noise_multiplier,")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--divisor", "batch-size"], "LC401"),
        (["--claim-sampling", "full-batch"], "LC402"),
        (["--noised-groups", "3", "--composition", "once"], "LC403"),
        (["--noised-groups", "3", "--composition", "separate"], "LC403"),
        (["--neighbours", "replace-one", "--sensitivity-for", "add-remove"], "LC404"),
        (["--sensitivity-of", "mean", "--noise-on", "sum"], "LC406"),
        (["--dataset-size-from", "data"], "LC409"),
    ],
)
def test_a_declared_mistake_leaves_with_one(words, code) -> None:
    run = [*RUN, "--noise-multiplier", "4", "--steps", "4", "--format", "json"]
    exit_code, out, _ = call(*run, *words)
    assert exit_code == 1
    assert code in [item["code"] for item in json.loads(out)["diagnostics"]]


def test_a_correct_declaration_leaves_with_zero() -> None:
    words = ["--noised-groups", "3", "--composition", "joint", "--divisor", "constant"]
    words += ["--dataset-size-from", "data", "--neighbours", "zero-out"]
    result = found(*RUN, "--noise-multiplier", "4", "--steps", "4", *words)
    assert result["privacy"]["noise_multiplier"] < 4 / 3**0.5 + 1e-15
    assert result["diagnostics"] == []


def test_no_finite_epsilon_leaves_with_three() -> None:
    words = ["--dataset-size", "10", "--sampling", "full-batch", "--delta", "1e-12"]
    code, out, _ = call(*words, "--noise-multiplier", "1e-200", "--steps", "1", "--format", "json")
    assert code == 3
    assert json.loads(out)["privacy"]["epsilon"] is None


@pytest.fixture
def analysis(tmp_path):
    file = tmp_path / "analysis.json"
    file.write_text(analysis_json(sample()))
    return file


def changed(file, section: str, **values: object):
    document = json.loads(file.read_text())
    document[section].update(values)
    file.write_text(json.dumps(document))
    return file


def test_an_analysis_gives_noise_relation_batch_and_split(analysis) -> None:
    changed(
        analysis,
        "assumptions",
        noise_multiplier=1.5,
        batch_size=50,
        neighbours="replace-one",
        allocation="optimal",
        scope="constraint-set",
    )
    changed(analysis, "network", sensitivity=0.1)
    words = ["--dataset-size", "1000", "--delta", "1e-5", "--sampling", "poisson", "--steps", "40"]
    result = found(str(analysis), *words)
    privacy = result["privacy"]
    assert (privacy["noise_multiplier"], privacy["batch_size"]) == (1.5, 50)
    assert (privacy["neighbours"], privacy["allocation"]) == ("replace-one", "optimal")
    assert result["diagnostics"] == []
    assert found(str(analysis), *words[:-2], "--target-epsilon", "1")["solved_for"] == "steps"
    solved = found(str(analysis), *words, "--target-epsilon", "1")
    assert solved["solved_for"] == "noise_multiplier"
    for contradiction in (["--neighbours", "add-remove"], ["--batch-size", "49"]):
        code, _, err = call(str(analysis), *words, *contradiction)
        assert code == 2
        assert "was computed for" in err


def test_bounds_at_the_weights_of_a_file_are_no_bounds_of_a_run(analysis) -> None:
    changed(analysis, "assumptions", batch_size=50, scope="point", neighbours="add-remove")
    changed(analysis, "network", sensitivity=0.1)
    result = found(str(analysis), *RUN, "--steps", "40")
    assert [item["code"] for item in result["diagnostics"]] == ["LC408"]


def test_an_analysis_without_a_bound_has_no_epsilon(analysis) -> None:
    changed(analysis, "network", sensitivity=None)
    code, _, err = call(str(analysis), *RUN, "--steps", "40")
    assert code == 3
    assert "no finite sensitivity" in err


def test_an_analysis_of_a_run_needs_no_further_option(tmp_path) -> None:
    """It states how often and at which rate batches are drawn."""
    file, drawn = tmp_path / "analysis.json", replace(PLAN, rate=0.2)
    for plan in (PLAN, drawn):
        analysis = replace(sample(), privacy=account_for(plan, 1.5))
        assumptions = replace(analysis.assumptions, noise_multiplier=1.5, batch_size=50)
        file.write_text(analysis_json(replace(analysis, assumptions=assumptions)))
        assert found(str(file))["privacy"]["epsilon"] == epsilon(plan, 1.5)
        longer = found(str(file), "--steps", "80")
        assert longer["privacy"]["epsilon"] == epsilon(plan.with_steps(80), 1.5)
    assert epsilon(drawn, 1.5) > 2.0 * epsilon(PLAN, 1.5)
    others = ["--sampling", "full-batch", "--batch-size", "1000"]
    whole = replace(analysis, assumptions=replace(assumptions, batch_size=None))
    file.write_text(analysis_json(whole))
    assert found(str(file), *others)["privacy"]["sampling"] == "full-batch"


def test_a_settings_file_fills_what_was_not_given(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lipcert.toml").write_text(
        "dataset-size = 1000\nbatch-size = 50\nsampling = 'poisson'\ndelta = 1e-5\nsteps = 40\n"
        "noise-multiplier = 1.5\n"
    )
    monkeypatch.chdir(tmp_path)
    assert found()["privacy"]["epsilon"] == epsilon(PLAN, 1.5)
    assert found("--noise-multiplier", "3")["privacy"]["epsilon"] == epsilon(PLAN, 3.0)
    solved = found("--target-epsilon", "2")
    assert solved["solved_for"] == "noise_multiplier"
    assert solved["privacy"]["steps"] == 40
