"""Tables of the documentation are what the examples print, its grammar is the one that is read."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from string import Template

import numpy as np
import pytest
import yaml

from lipcert.core.line import RULES
from lipcert.core.losses import KINDS
from lipcert.core.losses.base import parameters_of
from lipcert.core.main import EXIT_CODES
from lipcert.core.rules import FUNCTIONS, STEPS
from lipcert.core.text import NOT_CHECKED
from lipcert.core.verdict import STAGES
from lipcert.privacy.account import account_for
from lipcert.privacy.accounting import epsilon
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.privacy.selection import Law
from tests.commands import lipcert, printed_by, script
from tests.core.test_certificate import MEMBERS, OPTIONAL
from tests.pages import NUMBER

ROOT = Path(__file__).resolve().parents[1]
REPORTED_RUN = shlex.split(
    "--input-norm 1 --scope constraint-set --constraint spectral:1.5 --bias-norm 1 "
    "--dataset-size 64 --batch-size 64 --sampling full-batch --steps 4 --delta 1e-5 "
    "--noise-multiplier 8"
)


def example(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def table(page: str, name: str) -> str:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return text.split(f"<!-- table: {name} -->\n")[1].split("<!-- end -->")[0]


@pytest.mark.nightly
def test_the_table_of_mechanisms_is_what_the_example_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    example("compare_mechanisms").main()
    printed, shown = capsys.readouterr().out, table("mechanisms.md", "compare_mechanisms")
    assert NUMBER.sub("#", shown).split() == NUMBER.sub("#", printed).split()
    for ours, theirs in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True):
        assert float(ours.replace(",", "")) == pytest.approx(
            float(theirs.replace(",", "")), rel=2e-3
        )


@pytest.mark.nightly
def test_the_epsilon_of_a_search_is_what_privacy_finds() -> None:
    rows = [
        row.strip("| ").split(" | ") for row in table("verbs/privacy.md", "trials").splitlines()
    ]
    assert len(rows[2:]) == 3
    for trials, *shown in rows[2:]:
        plan = TrainingPlan(60_000, Sampling.POISSON, 1e-5, 512, epochs=10, trials=int(trials))
        account = account_for(plan, 1.1)
        assert account.selection is not None
        of_best = account.selection.best_of
        found = account.selection.one_trial, account.epsilon, *(of_best[law.value] for law in Law)
        for ours, value in zip(shown, found, strict=True):
            assert value <= float(ours) <= value * 1.002


def test_the_epsilon_of_each_sampling_is_what_the_checker_finds() -> None:
    rows = [row for row in table("mechanisms.md", "bins").splitlines() if "." in row]
    assert len(rows) == 3
    for row in rows:
        run, *shown = row.strip("| ").split(" | ")
        size, batch, epochs, sigma = run.split(", ")
        examples, batches = int(size.replace(",", "")), int(batch.replace(",", ""))
        samplings = Sampling.POISSON, Sampling.BALLS_IN_BINS, Sampling.SHUFFLE
        for sampling, number in zip(samplings, shown, strict=True):
            plan = TrainingPlan(
                examples, sampling, 1e-5, batches, epochs=float(epochs),
                neighbours=Neighbouring.ZERO_OUT,
            )  # fmt: skip
            assert epsilon(plan, float(sigma)) == pytest.approx(float(number), rel=2e-3)


CERTIFICATES = (ROOT / "docs" / "certificates.md").read_text(encoding="utf-8")
FORMAT = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
GRAMMAR = FORMAT.split("<!-- grammar -->")[1].split("<!-- end -->")[0]


def test_the_grammar_names_every_member_and_no_other() -> None:
    objects = re.sub(r'"[^"]*"', "", GRAMMAR.split("\n\n")[0])
    named = set(re.findall(r"[{,]\s*([a-z_0-9]+)", objects))
    assert named == {name for _, name in MEMBERS} | {"domain"}


def test_the_grammar_marks_what_may_be_left_out() -> None:
    """`level` of a fact may be, that of a kernel may not."""
    assert set(re.findall(r"([a-z_]+)\?", GRAMMAR)) == OPTIONAL | {"level"}


def test_every_assumption_of_the_ledger_is_explained() -> None:
    folder = ROOT / "lipcert" / "core" / "ledger"
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    explained = re.findall(r"^\| `(A-[A-Z-]+)` \|", CERTIFICATES, flags=re.MULTILINE)
    assert sorted(explained) == sorted(set(re.findall(r'"(A-[A-Z-]+)"', source)))


def test_stages_and_verdicts_are_those_of_the_checker() -> None:
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|", FORMAT, flags=re.MULTILINE)
    assert [(int(number), name) for number, name in rows] == list(enumerate(STAGES))
    codes = re.findall(
        r"^\| `LIPCERT-CHECK: ([A-Z]+) <sha256>` \| (\d) \|", CERTIFICATES, re.MULTILINE
    )
    assert {word.lower(): int(code) for word, code in codes} == EXIT_CODES
    assert NOT_CHECKED in " ".join(CERTIFICATES.split())


def test_the_format_describes_every_rule_kind_of_step_function_and_loss() -> None:
    titles = re.findall(r"^### (.*)$", FORMAT, flags=re.MULTILINE)
    assert sorted(rule for title in titles for rule in title.split(", ")) == sorted(RULES)
    of_steps, of_losses = (FORMAT.split(f"\n## {part}\n")[1] for part in ("Steps", "Losses"))
    kinds = set(re.findall(r"^\| `([a-z]+)(?:\.NAME)?/1`", of_steps, flags=re.MULTILINE))
    assert kinds == {kind.lower() for kind in STEPS}
    (names,) = re.findall(r"The names are ([^.]*)\.", " ".join(FORMAT.split()))
    assert sorted(names.split(", ")) == sorted(FUNCTIONS)
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]*) \|", of_losses, flags=re.MULTILINE)
    stated = {kind: set(re.findall(r"`([a-z_]+)`", row)) for kind, row in rows if kind in KINDS}
    of_tokens = {"per_token", "class_axis"}
    assert stated == {kind: set(parameters_of(kind)) - of_tokens for kind in KINDS}


@pytest.mark.nightly
def test_the_example_for_continuous_integration(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    words = ["sh", "examples/certify_in_ci.sh", "models/digits_mlp.onnx", str(baseline)]
    for expected in ("LIPCERT-CHECK: VALID", "0 grew, 0 shrank, 0 appeared"):
        done = subprocess.run(
            words,
            cwd=ROOT,
            env={**os.environ, "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
        assert baseline.exists()


@pytest.mark.nightly
def test_the_commands_for_reports(tmp_path: Path) -> None:
    """As shown, in one folder and in this order; every one of them writes its file."""
    page = (ROOT / "docs" / "verbs" / "report.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    words = {"MODEL": [str(ROOT / "models" / "digits_lipschitz_cnn.onnx")], "RUN": REPORTED_RUN}
    for line in block.splitlines():
        command = [part for word in line.split()[1:] for part in words.get(word, [word])]
        done = lipcert(command, tmp_path)
        assert done.exit_code == 0, (line, done.stderr)
        assert (tmp_path / command[command.index("-o") + 1]).stat().st_size > 1000
    assert "<svg" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_every_number_of_a_document_is_listed() -> None:
    """Of documents that others read; those of an unfinished audit are named without one."""
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    form = re.compile(r"lipcert[.-][a-z]+(?:-[a-z]+)*/\d+")
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "lipcert").rglob("*.py"))
    found = {name for text in sources for name in form.findall(text)}
    of_own_use = {name for name in found if re.match(r"lipcert.(audit-|proposals|structure)", name)}
    assert set(form.findall(page)) == found - of_own_use
    for name in of_own_use:
        if name.startswith("lipcert.audit-"):
            assert f"`{name.partition('/')[0]}`" in page


AUDIT = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
TWINS = (ROOT / "docs" / "twin_runs.md").read_text(encoding="utf-8")
MACHINES = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")


OF_OTHERS = {"--nproc-per-node", "--no-python", "--array", "--wrap", "--nthreads"}
"""options of torchrun, sbatch and dask"""


def test_the_options_that_the_page_on_audits_names_exist() -> None:
    shown = lipcert(["audit", "--help"]).stdout
    named = set(re.findall(r"(--[a-z]+(?:-[a-z]+)*)", AUDIT + TWINS + MACHINES)) - OF_OTHERS
    assert {"--data", "--trace", "--attack", "--results", "--merge", "--dtype"} <= named
    assert all(option in shown for option in named)


def test_what_make_trainable_prints() -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    part = page.split("<!-- example: make_trainable -->\n")[1].split("<!-- end -->")[0]
    source, shown = re.findall(r"```(?:python|text)\n(.*?)```", part, flags=re.DOTALL)
    assert printed_by(source) == shown


def test_the_twin_run_finds_what_it_says(tmp_path: Path) -> None:
    """In Python, and by the first of its commands; the second is run by the page private.md."""
    part = TWINS.split("<!-- example: twin -->\n")[1].split("<!-- end -->")[0]
    (source,) = re.findall(r"```python\n(.*?)```", part, flags=re.DOTALL)
    (said,) = re.findall(r"# (Violation: .*)", source)
    first, *others = said.replace(", and", "…, and").split("…")
    printed = printed_by(source)
    assert first in printed
    assert all(other.strip(",") in printed for other in others)
    (tmp_path / "train.py").write_text(source.rpartition("print")[0], encoding="utf-8")
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(64, 6)).astype(np.float32), draws.integers(3, size=64)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    command = next(line for line in TWINS.splitlines() if line.startswith("lipcert audit --twin "))
    assert lipcert(shlex.split(command)[1:], tmp_path).exit_code == 1


def test_the_audit_from_python_runs() -> None:
    source = next(
        block
        for block in re.findall(r"```python\n(.*?)```", AUDIT, re.DOTALL)
        if "attack_steps=5" in block
    )
    verdict, factor = printed_by(source).split()
    assert verdict == "pass"
    assert 1.0 < float(factor) < 10.0


@pytest.mark.nightly
def test_shards_of_every_launcher_make_one_report(tmp_path: Path) -> None:
    """As their shells run the commands, with the variables that each of them sets."""
    part = MACHINES.split("<!-- shards -->")[1].split("<!-- end -->")[0]
    quoted = re.findall(r"""['"](?:CUDA\S* )?lipcert (audit [^'"]*--shard [^'"]*)['"]""", part)
    ranks = {
        "RANK": "{0}",
        "WORLD_SIZE": "8",
        "SLURM_ARRAY_TASK_ID": "{0}",
        "SLURM_ARRAY_TASK_COUNT": "8",
        "JOB_COMPLETION_INDEX": "{0}",
    }
    (tmp_path / "model.onnx").write_bytes((ROOT / "models" / "digits_mlp.onnx").read_bytes())
    x, y = np.full((20, 64), 0.5, np.float32), np.zeros(20, np.int64)
    np.savez(tmp_path / "train.npz", x=x, y=y)
    assert len(quoted) == 3
    for index, command in enumerate(quoted):
        found = {name: word.format(index) for name, word in ranks.items()}
        words = shlex.split(Template(command).substitute(found))
        done = lipcert([*words, "--unit-size", "2"], tmp_path)
        assert done.exit_code == 0, done.stderr
    (merging,) = re.findall(r"^lipcert (audit --merge .*)$", part, re.MULTILINE)
    done = lipcert([*merging.split(), "--format", "json"], tmp_path)
    found = json.loads(done.stdout)
    done_of = found["units_done"], found["units"]
    assert (done.exit_code, *done_of) == (3, 5, 10)  # 0 and 8, 1 and 9, 2


@pytest.mark.nightly
def test_data_of_every_form_are_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = AUDIT.split("## Your data\n")[1].split("\n## ")[0]
    written, module = re.findall(r"```python\n(.*?)```", part, flags=re.DOTALL)
    (tmp_path / "models").symlink_to(ROOT / "models")
    (tmp_path / "my_data.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    printed_by(written, tmp_path)
    (commands,) = re.findall(r"```sh\n(.*?)```", part, flags=re.DOTALL)
    for line, examples in zip(commands.splitlines(), (300, 300, 200, None), strict=True):
        done = lipcert([*shlex.split(line)[1:], "--format", "json"], tmp_path)
        assert done.exit_code == 0, done.stderr
        found = json.loads(done.stdout)
        assert examples is None or found["examples"] == examples


def _shown(page: str, name: str) -> list[tuple[str, str]]:
    """Commands of a transcript, and what is shown of their output."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    block = text.split(f"<!-- {name} -->\n```\n")[1].split("\n```\n")[0].replace("\\\n", " ")
    parts = re.split(r"^\$ (.*)$", block, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def _blind(text: str) -> str:
    """Without numbers, lines of tables, where lines end, and whether a lower end, whose confidence
    is 95 %, is by chance above the upper one."""
    known = NUMBER.sub("#", re.sub(r"sha256 [0-9a-f]+", "sha256", text))
    known = re.sub(r" time # s", "", re.sub(r"[─\s]+", " ", known).strip())
    above = r"ε is at most # (\(.*?\)), and within chance no less \(from below #\)"
    return re.sub(above, r"ε is between # (# % confidence) and # \1", known)


def assert_in_order(shown: str, printed: str) -> None:
    """Every part of what is shown is printed, in this order; `…` stands for what is left out."""
    left = _blind(printed)
    for part in filter(None, map(_blind, shown.split("\n…"))):
        _, found, left = left.partition(part)
        assert found == part, (part, printed)


@pytest.mark.nightly
def test_the_transcript_of_suggestions() -> None:
    ((command, shown),) = _shown("suggest.md", "transcript")
    done = lipcert(shlex.split(command)[1:])
    assert done.exit_code == 0
    assert_in_order(shown, done.stdout)


PATH = ROOT / "examples" / "suggested_run.py"


@pytest.mark.nightly
def test_the_path_from_a_useless_bound_to_a_private_run(tmp_path: Path) -> None:
    """By nothing but what is printed: the run of the script is the one that suggest prints."""
    pytest.importorskip("sklearn")
    script(PATH, "export", ".", cwd=tmp_path)
    source, options = (
        PATH.read_text(encoding="utf-8"),
        (
            "--input-box 0 1 --dataset-size 1437 --batch-size 128 --epochs 20 --sampling poisson"
            " --target-epsilon 3 --delta 1e-5 --apply recipe.toml"
        ),
    )
    assert (
        "Not usable" in lipcert(["analyze", "network.onnx", *options.split()[:3]], tmp_path).stdout
    )
    printed = lipcert(["suggest", "network.onnx", *options.split()], tmp_path).stdout
    run = re.search(r"make_private\(model, optimizer, loader, (.*)\)", printed)
    mechanism, rest = re.findall(r"(\w+\(.*?\)\)), (.*)", run.group(1))[0]
    assert f"mechanism = {mechanism}" in source
    for argument in rest.split(", "):
        assert argument.replace("1437", "TRAIN") in source
    for told in (r"# the run, of a loader with (batch_size=\d+)", r"(optimizer = .*\))"):
        found = re.search(told, printed)
        assert found.group(1) in source
    words = ["analyze", "network.onnx", "--config", "recipe.toml"]
    assert lipcert(words, tmp_path).stdout.startswith("Useful: ")
    accuracy = re.search(r"test accuracy ([\d.]+)", script(PATH, "train", ".", cwd=tmp_path))
    assert float(accuracy.group(1)) > 0.8


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["transcript", "same network"])
def test_the_runs_beside_opacus(name: str, tmp_path: Path) -> None:
    pytest.importorskip("opacus", reason="Opacus is not installed")
    pytest.importorskip("sklearn")
    _follow("opacus.md", name, tmp_path)


def _follow(page: str, name: str, tmp_path: Path) -> None:
    """A transcript, in this folder."""
    code = None
    for command, shown in _shown(page, name):
        program, *words = shlex.split(command)
        if program == "echo":
            assert int(shown) == code
            continue
        if program == "python":
            printed = script(ROOT / words[0], *words[1:], cwd=tmp_path)
        else:
            done = lipcert(words, tmp_path)
            printed, code = done.output, done.exit_code
        assert_in_order(shown, printed)


PRIVATE = (ROOT / "docs" / "private.md").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_the_answer_whether_a_run_is_private(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    _follow("private.md", "training", tmp_path)
    _follow("private.md", "one command", tmp_path)


def test_the_run_of_the_page_is_that_of_the_script_and_of_the_workflow() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", PRIVATE, flags=re.DOTALL)
    assert shown in (ROOT / "examples" / "private_run.py").read_text(encoding="utf-8")
    (flow,) = re.findall(r"```yaml\n(.*?)```", PRIVATE, flags=re.DOTALL)
    (job,) = yaml.safe_load(flow)["jobs"].values()
    train, audit = (step["run"].strip() for step in job["steps"] if "run" in step)
    commands = [command for name in ("training", "one command")
                for command, _ in _shown("private.md", name)]  # fmt: skip
    assert train in commands
    assert [" ".join(command.split()) for command in commands][-1] in " ".join(audit.split())


@pytest.mark.nightly
def test_what_the_page_says_of_a_wrong_rate_is_said(tmp_path: Path) -> None:
    """On the same data and in the same words, in a shorter run."""
    pytest.importorskip("sklearn")
    source = (ROOT / "examples" / "private_run.py").read_text(encoding="utf-8")
    (wrong,) = re.findall(r"Had the script `(lr=[^`]*)`", PRIVATE)
    changed = source.replace("lr=1.0", wrong).replace("epochs=4", "epochs=1")
    assert changed.count(wrong) == 1
    (tmp_path / "wrong.py").write_text(changed.replace('"balls-in-bins"', '"poisson"'), "utf-8")
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    x = (digits.data / 16.0).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x[:1000], y=digits.target[:1000])
    done = lipcert(["audit", "--twin", "wrong.py:train", "--data", "data.npz"], tmp_path)
    assert done.exit_code == 1
    (said,) = re.findall(r"\*if (example .*?)\*", " ".join(PRIVATE.split()))
    assert said in " ".join(done.stdout.split())
