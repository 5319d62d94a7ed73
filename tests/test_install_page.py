"""What the page on installing and every `pip install` say, beside what is declared and tested."""

import re
import runpy
import tomllib

from tests.pages import ROOT, blocks

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOWER_BOUNDS = runpy.run_path(str(ROOT / ".ci" / "lower_bounds.py"))
PAGE = "docs/install.md"
TORCH = {"audit", "training"}
"""extras that bring PyTorch"""


def newest() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def least() -> dict[str, str]:
    return dict(item.split("==") for item in LOWER_BOUNDS["least"](PROJECT))


def test_the_table_has_the_versions_that_are_declared_and_tested() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w-]+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert len(rows) > 10
    for name, low, high in rows:
        assert (low, high) == (least()[name], newest()[name]), name


def test_the_table_of_extras_has_all_that_users_may_ask_for() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert listed == set(LOWER_BOUNDS["EXTRAS"])
    assert listed <= PROJECT["optional-dependencies"].keys()


def test_every_least_version_is_installed_together() -> None:
    """One version for each name, whatever extra asks for it."""
    found = list(LOWER_BOUNDS["least"](PROJECT))
    assert len(set(found)) == len({item.split("==")[0] for item in found})
    assert least().keys() <= newest().keys()


def test_the_commands_install_what_is_tested() -> None:
    """The clone by its constraints, all else by the pin."""
    clone, alone = (block.text for block in blocks(PAGE))
    assert "-c constraints.txt -e '.[training]'" in clone
    assert alone.strip() == "pip install 'lipcert[training]' 'torch==2.13.*'"
    assert newest()["torch"].startswith("2.13.")


def places():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
    return [*pages, *(ROOT / "lipcert").rglob("*.py")]


def test_nothing_says_to_install_an_untested_torch() -> None:
    """Where an extra that brings torch is to be installed, the version is named beside it."""
    seen = 0
    for path in places():
        text = " ".join(path.read_text(encoding="utf-8").split())
        for found in re.finditer(r"pip install ['\"]lipcert\[([\w,]+)\]['\"](.{0,20})", text):
            if TORCH & set(found[1].split(",")):
                seen += 1
                assert found[2].startswith((" 'torch==2.13.*'", " {TESTED_TORCH}")), (
                    path,
                    found[0],
                )
    assert seen >= 4
