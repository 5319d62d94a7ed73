"""The checker gives every certificate of this folder the verdict that is expected of it."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from lipcert.core.check import Choices, check
from lipcert.core.line import RULES
from lipcert.core.losses import KINDS
from lipcert.core.main import EXIT_CODES
from lipcert.core.rules import STEPS
from lipcert.core.rules.activations import FUNCTIONS
from tests.conformance import make, run

HERE = Path(__file__).parent
ENTRIES = run.entries()
ACCEPTED = [entry for entry in ENTRIES if entry["verdict"] == "valid"]
SOME = [*ACCEPTED[::4], *(entry for entry in ENTRIES if entry["verdict"] != "valid")][::27]
BY_DAY = [*SOME, *(entry for entry in ENTRIES if entry.get("by_hand"))]
BY_NIGHT = pytest.mark.nightly
CHECKER = [sys.executable, "-m", "lipcert.core.main"]
COMMAND = [*CHECKER, "{certificate}", "--model={model}", "--accept-assumption={accept}"]


def wrongly_judged(entries, engine="float"):
    """Entries with another verdict or stage than is expected, and what was found."""
    wrong = []
    for entry in entries:
        choices = Choices(engine, frozenset(entry.get("accept", ())))
        report = check(run.certificate_of(entry), run.HERE / entry["model"], choices)
        found = report.verdict.value, len(report.stages) - 1
        if found != (entry["verdict"], entry["stage"]):
            wrong.append((entry["name"], found, report.reasons))
    return wrong


@pytest.mark.parametrize("entries", [BY_DAY, pytest.param(ENTRIES, marks=BY_NIGHT)], ids=len)
def test_verdicts(entries):
    assert not wrongly_judged(entries)


@pytest.mark.nightly
def test_verdicts_of_entries_made_anew(tmp_path, monkeypatch):
    shutil.copytree(HERE, tmp_path / "suite", symlinks=True)
    for module in (make, run):
        monkeypatch.setattr(module, "HERE", tmp_path / "suite")
    make.main()
    assert not wrongly_judged(run.entries())


@pytest.mark.nightly
def test_integers_prove_the_same():
    assert not wrongly_judged(ACCEPTED, "exact")


@pytest.mark.parametrize("some", ["--every=1200", pytest.param("--jobs=2", marks=BY_NIGHT)])
def test_a_command_is_run(some, capsys):
    assert run.main([some, "--", *COMMAND]) == 0
    assert ", 0 judged otherwise" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("certificate", "model"),
    [("carried", "perceptron"), ("raised", "images"), ("multi-margin", "linear")],
)
def test_the_formulas_of_the_page_give_the_bounds_of_perceptrons(certificate, model):
    """As an example evaluates them, with none of our code."""
    ratios = runpy.run_path(str(HERE.parents[1] / "examples" / "evaluate_lines.py"))["ratios"]
    files = HERE / f"certificates/{certificate}.json", HERE / f"models/{model}.onnx"
    found = [ratio for rule, ratio in ratios(*files) if rule != "norm/step"]
    assert 1.0 - 1e-12 < min(found) <= max(found) < 1.0 + 2.0**-22


@pytest.mark.parametrize(
    ("options", "printed", "code", "found"),
    [
        ([], "LIPCERT-CHECK: VALID 0", 0, "1 judged otherwise, 1 of them"),
        ([], "nothing", 0, "1 judged otherwise, 1 of them"),
        ([], "LIPCERT-CHECK: UNKNOWN 0", 3, "1 judged otherwise, 0 of them"),
        (["--codes-only"], "nothing", 1, "0 judged otherwise"),
    ],
)
def test_a_checker_that_errs_is_reported(options, printed, code, found, capsys):
    words = [sys.executable, "-c", f"print({printed!r}); raise SystemExit({code})"]
    assert run.main(["--only=unknown rule", *options, "--", *words]) == ("1 judged" in found)
    assert f"1 certificates, {found}" in capsys.readouterr().out


def test_the_runner_knows_the_exit_codes():
    assert run.EXIT_CODES == EXIT_CODES


def test_every_kind_is_there():
    counts = {word: sum(e["verdict"] == word for e in ENTRIES) for word in EXIT_CODES}
    assert counts["valid"] >= 60
    assert counts["invalid"] >= 300
    assert min(counts.values()) > 0
    assert all(entry["why"] for entry in ENTRIES)
    stages = {entry["stage"] for entry in ENTRIES if entry["verdict"] == "invalid"}
    assert stages == set(range(10))
    files = [path for path in HERE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < 1.5e6


def test_every_rule_step_function_and_loss_is_there():
    said = [json.loads((HERE / entry["certificate"]).read_bytes()) for entry in ACCEPTED]
    lines = [line for certificate in said for line in certificate["lines"]]
    assert {line["rule"] for line in lines} == RULES.keys()
    steps = {line["step"].partition("/")[0] for line in lines if "step" in line}
    functions = {f"activation.{name}" for name in FUNCTIONS}
    assert steps == functions | {kind.lower() for kind in STEPS} - {"activation"}
    losses = [item["data"] for c in said for item in c["assumptions"] if item["id"] == "A-LOSS"]
    assert {loss["kind"] for loss in losses} == {*KINDS, "joint"}


def test_every_rule_is_refused_where_it_states_too_little():
    named = {entry["why"].split()[0].rstrip(":") for entry in ENTRIES}
    assert named >= RULES.keys() - {"form/chain", "norm/step", "norm/run", "norm/stack"}
