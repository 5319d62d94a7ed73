"""What is published: a source distribution that holds all, and a wheel that holds the package.

Both are built as `python -m build` does it, without network.
"""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import cache
from pathlib import Path

import pytest

import lipcert

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
UNTRACKED = (ROOT / ".gitignore").read_text(encoding="utf-8").replace("/", "").split()
BUILD = "import sys; from setuptools import build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"


def build(kind: str, sources: Path, out: Path) -> Path:
    out.mkdir()
    words = [sys.executable, "-c", BUILD, f"build_{kind}", str(out)]
    done = subprocess.run(words, cwd=sources, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (built,) = out.iterdir()
    return built


@pytest.fixture(name="sources", scope="module")
def _sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout."""
    copy = tmp_path_factory.mktemp("build") / "copy"
    return shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", *UNTRACKED))


@pytest.fixture(name="wheel", scope="module")
def _wheel(sources: Path) -> Path:
    return build("wheel", sources, sources.parent / "wheel")


def files(folder: Path):
    """Those that belong to the sources."""
    for path in folder.iterdir():
        if path.name == ".git" or any(path.match(pattern) for pattern in UNTRACKED):
            continue
        if path.is_dir():
            yield from (f"{path.name}/{name}" for name in files(path))
        else:
            yield path.name


@cache
def checkout() -> frozenset[str]:
    """What git knows of the checkout; all files where there is no git."""
    try:
        done = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return frozenset(files(ROOT))
    return frozenset(name for name in done.stdout.splitlines() if (ROOT / name).exists())


@pytest.mark.nightly
def test_the_source_distribution_is_the_checkout(sources: Path, tmp_path: Path) -> None:
    """So that its tests run."""
    with tarfile.open(build("sdist", sources, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    assert checkout() <= set(files(tmp_path / f"lipcert-{lipcert.__version__}"))


@pytest.mark.nightly
def test_the_wheel_holds_the_package_alone(wheel: Path, sources: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {f"lipcert/{name}" for name in files(sources / "lipcert")}
    assert {"lipcert/py.typed", "lipcert/report/templates/page.html.jinja"} <= names
    assert wheel.name == f"lipcert-{lipcert.__version__}-py3-none-any.whl"


def metadata(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_what_the_wheel_says_of_itself(wheel: Path) -> None:
    said = metadata(wheel)
    assert (said["Name"], said["Version"]) == ("lipcert", lipcert.__version__)
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Description-Content-Type"] == "text/markdown"
    assert set(said.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    needed = said.get_all("Requires-Dist", [])
    always = {re.split(r"[<>=]", word)[0] for word in needed if "extra ==" not in word}
    assert always == {re.split(r"[<>=]", word)[0] for word in PROJECT["dependencies"]}
    of_training = [word for word in needed if 'extra == "training"' in word]
    assert any(word.startswith("onnxscript") for word in of_training)


@pytest.fixture(name="installed", scope="module")
def _installed(wheel: Path) -> Path:
    """The wheel unpacked, which is all that an installer does with one of this kind."""
    folder = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(installed: Path, *words: str) -> str:
    """What Python prints that finds the wheel and not the checkout."""
    done = subprocess.run(
        [sys.executable, "-P", *words],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_the_wheel_analyses_a_network_and_draws_a_page(installed: Path, tmp_path: Path) -> None:
    """Templates are found, and nothing of the checkout is needed."""
    assert run(installed, "-c", "import lipcert; print(lipcert.__file__)").startswith(
        str(installed)
    )
    model, page = ROOT / "models" / "digits_mlp.onnx", tmp_path / "page.html"
    words = ("analyze", str(model), "--format", "html", "-o", str(page), "--tier", "quick")
    run(installed, "-m", "lipcert", *words)
    assert "<svg" in page.read_text(encoding="utf-8")


def test_entry_points_of_the_wheel_exist(wheel: Path, installed: Path) -> None:
    (folder,) = installed.glob("*.dist-info")
    code = (
        "from importlib.metadata import PathDistribution; from pathlib import Path; "
        f"found = PathDistribution(Path({str(folder)!r})).entry_points; "
        "[p.load() for p in found]; print(*sorted(f'{p.group}:{p.name}' for p in found))"
    )
    groups = {"console_scripts": PROJECT["scripts"], **PROJECT.get("entry-points", {})}
    stated = sorted(f"{group}:{name}" for group, named in groups.items() for name in named)
    assert run(installed, "-c", code).split() == stated
