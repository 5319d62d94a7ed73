"""Documents are extended, never renamed; old ones are read and certificates accepted for ever."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from lipcert.core.certificate import read_certificate
from lipcert.core.check import Choices, check
from lipcert.core.verdict import Verdict
from lipcert.text.certificate import write_certificate
from tests.commands import lipcert
from tests.golden.documents import COMMANDS, document, names

HERE = Path(__file__).parent
KEPT = sorted(HERE.glob("*/documents"))
READERS = {
    "report": ["report", "analysis.json", "audit.json", "privacy.json", "--format", "markdown"],
    "report-of-a-check": ["report", "certificate.json", "check.json", "--format", "json"],
    "compare": ["compare", "analysis.json", "analysis.json"],
    "privacy": ["privacy", "analysis.json"],
}


@cache
def written():
    """What this version writes."""
    with TemporaryDirectory() as folder:
        return {name: document(name, Path(folder)) for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("folder", KEPT, ids=lambda path: path.parent.name)
def test_every_name_is_still_there_and_means_something_of_its_type(folder: Path, name: str) -> None:
    """A name that is null here has no type; a kept one that was null may have got any.

    Settings of a suggestion are those of the settings file that it changes, whichever these are.
    """
    kept = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    found = written()[name]
    assert found["schema"] == kept["schema"]
    now = set(names(found))
    for path, kind in set(names(kept)):
        if name == "suggestions" and "/settings/" in path:
            continue
        if kind == "null" or (path, "null") in now:
            assert any(other == path for other, _ in now), path
        else:
            assert (path, kind) in now, (path, kind)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("folder", KEPT, ids=lambda path: path.parent.name)
def test_kept_documents_are_read(folder: Path, reader: str) -> None:
    done = lipcert(READERS[reader], folder)
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("reader", READERS)
def test_members_of_later_versions_are_passed_over(tmp_path: Path, reader: str) -> None:
    """In every record; what is read stays the same."""
    for path in KEPT[-1].glob("*.json"):
        data = path.read_text(encoding="utf-8")
        if path.stem != "certificate":
            data = json.dumps(extended(json.loads(data)))
        (tmp_path / path.name).write_text(data, encoding="utf-8")
    was, is_now = (lipcert(READERS[reader], folder) for folder in (KEPT[-1], tmp_path))
    assert is_now.exit_code == 0, is_now.stderr
    if reader != "report-of-a-check":  # which holds all documents
        assert is_now.stdout == was.stdout


def extended(found):
    """With a member more of the document, of the network, and of all that is listed."""
    more = {"of-later": [1]}
    for name, member in found.items():
        if isinstance(member, list):
            found[name] = [{**item, **more} if isinstance(item, dict) else item for item in member]
        elif name in {"network", "model", "usefulness"} and isinstance(member, dict):
            found[name] = {**member, **more}
    return {**found, **more}


@pytest.mark.parametrize("reader", READERS)
def test_another_number_is_refused(tmp_path: Path, reader: str) -> None:
    first = next(word for word in READERS[reader] if word.endswith(".json"))
    for path in KEPT[-1].glob("*.json"):
        kept = path.read_text(encoding="utf-8")
        newer = kept.replace("lipcert.analysis/1", "lipcert.analysis/2", 1)
        newer = newer.replace("lipcert.certificate/3", "lipcert.certificate/4", 1)
        (tmp_path / path.name).write_text(newer if path.name == first else kept, encoding="utf-8")
    assert lipcert(READERS[reader], tmp_path).exit_code == 3


MODELS = HERE.parents[1] / "models"
CERTIFICATES = sorted(HERE.glob("*/*.lipcert.json"))


def test_there_are_certificates() -> None:
    assert len(CERTIFICATES) >= 4


@pytest.mark.parametrize("engine", ["float", "exact"])
@pytest.mark.parametrize("path", CERTIFICATES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_certificate_is_still_accepted(path: Path, engine: str) -> None:
    model = MODELS / f"{path.name.removesuffix('.lipcert.json')}.onnx"
    data = path.read_bytes()
    said = read_certificate(data)
    report = check(data, model, Choices(engine, frozenset(item.id for item in said.assumptions)))
    assert report.verdict is Verdict.VALID, report.reasons
    assert write_certificate(said) == data
