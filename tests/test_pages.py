"""Whatever README and pages show is run: here as it is shown, or where the table says."""

import importlib
import json
import os
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import click
import numpy as np
import pytest

from benchmarks import side_by_side
from benchmarks.reproductions.page import table_of
from lipcert.audit.trace.reading import read_trace
from lipcert.cli.main import cli
from lipcert.privacy.plan import Sampling
from tests.commands import lipcert, printed_by
from tests.pages import NUMBER, ROOT, Block, blocks, read, run_page

PAGES = sorted(
    [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")]
    + ["README.md", "CONTRIBUTING.md", "SECURITY.md", "models/README.md"]
)
AS_SHOWN = [page for page in PAGES if any(block.language == "console" for block in blocks(page))]
"""pages with sessions: these and all Python on them run in order, in one folder"""

CI = ".ci/run does this in a clean checkout"
RUN_BY = {
    ("README.md", "Analyse a shipped model"): (
        "test_distribution.py::test_the_wheel_analyses_a_network_and_draws_a_page"
    ),
    ("README.md", "Run the tests"): CI,
    ("CONTRIBUTING.md", "Set up"): CI,
    ("CONTRIBUTING.md", "Inner loop"): CI,
    ("CONTRIBUTING.md", "Mutants"): "test_mutants.py::test_every_mutant_is_killed",
    ("docs/audit.md", "Audits"): "test_pages.py::test_the_first_audits",
    ("docs/audit.md", "Your data"): "test_docs.py::test_data_of_every_form_are_audited",
    ("docs/audit.md", "Recorded runs"): "test_pages.py::test_lines_that_record_a_run",
    ("docs/twin_runs.md", "Twin runs"): "test_docs.py::test_the_twin_run_finds_what_it_says",
    ("docs/audit.md", "Several ranks"): "audit/test_recorder.py::test_ranks_write_side_by_side",
    ("docs/machines.md", "Dask"): "audit/test_cluster.py::test_the_page_on_audits_from_python",
    ("docs/machines.md", "Shards"): "test_docs.py::test_shards_of_every_launcher_make_one_report",
    ("docs/audit.md", "From Python"): "test_docs.py::test_the_audit_from_python_runs",
    (
        "docs/certificates.md",
        "Certificates: claims that somebody else can check",
    ): "test_pages.py::test_a_certificate_is_issued_checked_and_compared",
    ("docs/ci.md", "On GitHub"): "test_ci_page.py::test_the_workflow_is_green",
    ("docs/ci.md", "Before commits"): "test_ci_page.py::test_the_hook_is_defined_and_green",
    ("docs/ci.md", "In pytest"): "test_ci_page.py::test_the_tests_are_green",
    ("docs/ci.md", "Anywhere else"): "test_ci_page.py::test_the_commands_leave_with_what_is_said",
    (
        "docs/first_hour.md",
        "The first hour with your own network",
    ): "test_first_hour.py::test_the_five_steps_run_as_they_stand",
    (
        "docs/first_hour.md",
        "Convolutions with batch normalisation",
    ): "test_first_hour.py::test_the_first_answer_is_as_shown",
    (
        "docs/install.md",
        "In a clone",
    ): "test_install_page.py::test_the_commands_install_what_is_tested",
    ("docs/install.md", "Without a clone"): (
        "test_install_page.py::test_the_commands_install_what_is_tested"
    ),
    (
        "docs/mechanisms.md",
        "Mechanisms: what bounds a gradient, and what it costs",
    ): "test_pages.py::test_the_settings_of_single_layers_are_read",
    ("docs/opacus.md", "Record an Opacus run"): "test_docs.py::test_the_runs_beside_opacus",
    (
        "docs/opacus.md",
        "The same network under `make_private`",
    ): "test_docs.py::test_the_runs_beside_opacus",
    (
        "docs/opacus.md",
        "Under Lightning",
    ): "audit/test_lightning.py::test_what_a_trainer_did_is_recorded",
    (
        "docs/opacus.md",
        "Under Accelerate",
    ): "audit/test_accelerate.py::test_a_prepared_loop_is_recorded",
    ("docs/private.md", "Train"): "test_docs.py::test_the_answer_whether_a_run_is_private",
    ("docs/private.md", "Audit"): "test_docs.py::test_the_answer_whether_a_run_is_private",
    ("docs/private.md", "In CI"): (
        "test_docs.py::test_the_run_of_the_page_is_that_of_the_script_and_of_the_workflow"
    ),
    ("docs/verbs/report.md", "report"): "test_docs.py::test_the_commands_for_reports",
    ("docs/suggest.md", "lipcert suggest"): "test_docs.py::test_the_transcript_of_suggestions",
    ("docs/training.md", "Private training"): "test_pages.py::test_the_private_loop",
    (
        "docs/training.md",
        "Frozen features",
    ): "test_examples.py::test_frozen_features_keep_what_they_have_learnt",
    ("docs/training.md", "BatchNorm and Dropout"): "test_docs.py::test_what_make_trainable_prints",
}
"""below which heading of which page blocks are run by which test"""


def is_run(block: Block) -> bool:
    """Whether somebody is meant to run it, or to write it into a file that is read."""
    return block.language in {"sh", "python", "console", "toml", "yaml"} or "\n$ " in (
        f"\n{block.text}"
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("page", AS_SHOWN)
def test_a_page_runs_as_it_is_shown(page: str, tmp_path: Path) -> None:
    run_page(page, tmp_path)


def test_every_block_is_run() -> None:
    """By a test that exists, or as it is shown."""
    found = {
        (page, block.heading)
        for page in PAGES
        for block in blocks(page)
        if is_run(block) and not (page in AS_SHOWN and block.language in {"python", "console"})
    }
    assert found == {(page, heading) for page, heading in RUN_BY if page in PAGES}
    for (page, _), place in RUN_BY.items():
        if page in PAGES and place != CI:
            path, _, name = place.partition("::")
            assert f"def {name}" in (ROOT / "tests" / path).read_text(encoding="utf-8")


def modules_run():
    """Lines of all pages that start a program of the repository."""
    for page in PAGES:
        for line in re.findall(r"python (?:-m (?:benchmarks|models)\.|\w+/).*", read(page)):
            yield page, line.split("`")[0].split("  ")[0].split("#")[0]


@pytest.mark.parametrize(("page", "line"), sorted(set(modules_run())))
def test_programs_that_pages_name_load(page: str, line: str) -> None:
    """And have the options that are given to them; what they do takes minutes to hours."""
    words = shlex.split(line)[1:]
    with (
        patch.dict(os.environ),
        patch.object(sys, "path", [str(ROOT / words[0]).rpartition("/")[0], *sys.path]),
    ):
        if words[0] == "-m":
            path = Path(str(importlib.import_module(words[1]).__file__))
        else:
            path = ROOT / words[0]
            runpy.run_path(str(path), run_name="loaded")
    files = path.parent.glob("*.py") if path.name == "__init__.py" else [path]
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    assert all(f'"{word}"' in source for word in words if word.startswith("--")), line


def test_every_verb_has_a_page_with_its_options() -> None:
    overview, readme = read("docs/verbs/index.md"), read("README.md")
    for verb in cli.list_commands(click.Context(cli)):
        assert f"<!-- options: {verb}" in read(f"docs/verbs/{verb}.md")
        assert f"[{verb}]({verb}.md)" in overview
        assert f"`{verb}`" in readme


def test_readme_is_for_newcomers() -> None:
    assert len(read("README.md").splitlines()) <= 130


def test_a_certificate_is_issued_checked_and_compared(tmp_path: Path) -> None:
    (block,) = (block for block in blocks("docs/certificates.md") if block.language == "sh")
    shutil.copy(ROOT / "models" / "digits_mlp.onnx", tmp_path / "model.onnx")
    for line, code in zip(block.text.splitlines(), (0, 3, 0), strict=True):
        done = lipcert(shlex.split(line)[1:], tmp_path)
        assert done.exit_code == code, (line, done.output)
        shutil.copy(tmp_path / "model.lipcert.json", tmp_path / "old.lipcert.json")


def test_the_settings_of_single_layers_are_read(tmp_path: Path) -> None:
    (block,) = (block for block in blocks("docs/mechanisms.md") if block.language == "toml")
    (tmp_path / "lipcert.toml").write_text(block.text, encoding="utf-8")
    done = lipcert(["config", "show"], tmp_path)
    assert done.exit_code == 0, done.output
    assert re.search(r"^input-clips .*\*\.fc2", done.stdout, re.MULTILINE)


@pytest.mark.nightly
def test_the_first_audits(tmp_path: Path) -> None:
    """Of the recorded run that the third is about: tests/test_examples.py."""
    block = next(blocks("docs/audit.md"))
    shutil.copytree(ROOT / "models", tmp_path / "models")
    shutil.copy(ROOT / "models" / "digits_cnn.onnx", tmp_path)
    assert lipcert(["certify", "digits_cnn.onnx"], tmp_path).exit_code == 0
    x = np.random.default_rng(0).random((20, 1, 8, 8), dtype=np.float32)
    np.savez(tmp_path / "batches.npz", x=x, y=np.arange(20) % 10)
    first, second, third = block.text.splitlines()
    for line in (first, second):
        done = lipcert(shlex.split(line)[1:], tmp_path)
        assert done.stdout.startswith("Pass: 20 examples replayed"), (line, done.output)
    assert "--trace" in third


LOOP = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import lipcert
model = torch.nn.Linear(16, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_fn, rate = torch.nn.CrossEntropyLoss(), 0.5
x = torch.nn.functional.normalize(torch.rand(600, 16))
loader = DataLoader(TensorDataset(x, torch.arange(600) % 10), batch_size=300)
"""


def test_lines_that_record_a_run(tmp_path: Path) -> None:
    (block,) = (b for b in blocks("docs/audit.md") if b.heading == "Recorded runs")
    step = "for x, y in loader: loss_fn(model(x), y).backward(); optimizer.step()\n"
    printed_by(f"{LOOP}{block.text}{step}recorder.close()", tmp_path)
    done = lipcert(["trace", "verify", "run", "--format", "json"], tmp_path)
    assert json.loads(done.stdout)["steps"] == 2
    batches = [step.batches[0] for step in read_trace(tmp_path / "run").steps()]
    assert sum(batch.examples for batch in batches) == 600
    assert all(batch.sampler is Sampling.POISSON for batch in batches)
    assert all(batch.index is not None for batch in batches)


@pytest.mark.nightly
def test_the_private_loop(tmp_path: Path) -> None:
    source = next(b.text for b in blocks("docs/training.md") if b.language == "python")
    small = source.replace("60000", "600").replace("epochs=20", "epochs=2")
    printed = printed_by(LOOP + small + "print(private.epsilon)", tmp_path)
    assert 2.9 < float(printed) <= 3.0
    done = lipcert(["check", "run/model.lipcert.json", "--model", "run/model.onnx"], tmp_path)
    assert "LIPCERT-CHECK: CONDITIONAL" in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["norms", "lipschitz"])
def test_what_is_measured_beside_others(name: str) -> None:
    printed = "\n".join(side_by_side.TABLES[name]())
    shown = table_of(ROOT / "docs" / "benchmarks.md", name)
    assert NUMBER.sub("#", shown).split() == NUMBER.sub("#", printed).split()
    values = [[float(n.replace(",", "")) for n in NUMBER.findall(t)] for t in (shown, printed)]
    assert values[0] == pytest.approx(values[1], rel=1e-3)
