"""What the project asks of those who take part: hooks, workflows, citation, versions."""

import re
import shlex
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import lipcert
from tests.conftest import refuse_empty_tables

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = [ROOT / name for name in ("SECURITY.md", "CONTRIBUTING.md")]
PAGES.append(ROOT / ".github" / "pull_request_template.md")


@cache
def loaded(path: Path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_asks_for_little_and_pins_versions(path: Path) -> None:
    flow = loaded(path)
    assert flow["permissions"] == {"contents": "read"}
    for job in flow["jobs"].values():
        assert job["timeout-minutes"] <= 60
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            if "run" in step:
                subprocess.run(["bash", "-n", "-c", step["run"]], check=True)
            elif step["uses"] != "./":
                assert re.fullmatch(r"[a-z-]+/[a-z-]+(/[a-z-]+)?@v\d+", step["uses"])


def test_the_workflow_runs_what_anybody_can_run() -> None:
    flow = loaded(ROOT / ".github" / "workflows" / "test.yml")
    (command,) = (step["run"] for step in flow["jobs"]["test"]["steps"] if "run" in step)
    assert (ROOT / command).stat().st_mode & 0o111


def test_the_action_is_tried_as_it_is() -> None:
    """With inputs that it has, on a network that is there."""
    flow = loaded(ROOT / ".github" / "workflows" / "test.yml")
    (step,) = (step for step in flow["jobs"]["action"]["steps"] if step.get("uses") == "./")
    assert set(step["with"]) <= set(loaded(ROOT / "action.yml")["inputs"])
    assert (ROOT / step["with"]["model"]).exists()


def test_hooks_are_tools_of_the_environment() -> None:
    """Without versions of their own, and no hook that is fetched from elsewhere."""
    dev = {re.split(r"[\[<>=]", word)[0] for word in PROJECT["optional-dependencies"]["dev"]}
    packages = {"lint-imports": "import-linter"}
    (repo,) = loaded(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for hook in repo["hooks"]:
        assert hook["language"] == "system"
        program, *_ = shlex.split(hook["entry"])
        assert packages.get(program, program) in dev
        assert f".venv/bin/{program}" in script
        re.compile(hook.get("files", ""))


def test_the_citation_is_of_this_version() -> None:
    found = loaded(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(found)
    assert found["version"] == lipcert.__version__ == PROJECT["version"]
    assert found["license"] == PROJECT["license"]
    assert [author["name"] for author in found["authors"]] == [
        author["name"] for author in PROJECT["authors"]
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def test_an_empty_table_of_cases_is_refused() -> None:
    module = ModuleType("cases")
    module.CASES = {"one": 1}
    refuse_empty_tables([module])
    module.CASES = {}
    with pytest.raises(pytest.UsageError, match=r"cases\.CASES"):
        refuse_empty_tables([module])
