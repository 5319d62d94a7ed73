"""The cache of proposals on the command line: on by default, private, no reason to fail."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lipcert.cli.cache import cache_directory
from lipcert.cli.main import cli
from lipcert.search.cache import ProposalCache
from lipcert.search.proposals import proposals
from tests.cli.engine import install

MODEL = Path(__file__).parents[2] / "models" / "digits_mlp.onnx"


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory for this test, in which proposals count as slow at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIPCERT_CACHE")
    monkeypatch.setattr(ProposalCache.__init__, "__defaults__", (proposals, 0.0))
    return tmp_path / "cache"


def run(folder: Path, *words: str, **environment: str) -> Result:
    runner = CliRunner(env={"LIPCERT_CACHE_DIR": str(folder), **environment})
    return runner.invoke(cli, ["analyze", str(MODEL), "--format", "json", *words])


def test_the_second_analysis_reads_what_the_first_wrote(folder: Path) -> None:
    first, second = run(folder), run(folder)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert (first.stderr, second.stderr) == ("", "")
    assert list(folder.glob("*.norm"))
    before, after = json.loads(first.stdout), json.loads(second.stdout)
    assert before["assumptions"]["notes"] == []
    (note,) = after["assumptions"].pop("notes")
    assert "read from the private cache of this user and proved again: " in note
    assert "--no-cache" in note
    del before["assumptions"]["notes"]
    assert before == after


@pytest.mark.nightly
def test_a_poisoned_cache_makes_no_bound_smaller(folder: Path) -> None:
    """A norm that is claimed too small is not proved, so that it is never shown."""
    honest = json.loads(run(folder).stdout)
    for file in folder.glob("*.norm"):
        entry = json.loads(file.read_text().splitlines()[0])
        for claim in entry["claims"]:
            claim[0] = (0.5 * float.fromhex(claim[0])).hex()
        text = json.dumps(entry)
        file.write_text(f"{text}\n{sha256(text.encode()).hexdigest()}\n")
    poisoned = json.loads(run(folder).stdout)
    assert "read from the private cache" in poisoned["assumptions"]["notes"][0]
    for before, after in zip(honest["nodes"], poisoned["nodes"], strict=True):
        assert before["operator_norm"] is None or after["operator_norm"] >= before["operator_norm"]
    for name in ("lipschitz", "grad_norm", "sensitivity"):
        assert poisoned["network"][name] >= honest["network"][name]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("words", "environment"), [(["--no-cache"], {}), ([], {"LIPCERT_CACHE": "no"})]
)
def test_it_can_be_switched_off(
    folder: Path, words: list[str], environment: dict[str, str]
) -> None:
    run(folder)
    for file in folder.iterdir():
        file.write_text("damaged")
    result = run(folder, *words, **environment)
    assert json.loads(result.stdout)["assumptions"]["notes"] == []
    assert all(file.read_text() == "damaged" for file in folder.iterdir())


def test_a_file_can_switch_it_off(folder: Path) -> None:
    Path("lipcert.toml").write_text("cache = false\n")
    assert run(folder).exit_code == 0
    assert not folder.exists()


def test_a_file_cannot_say_where_it_is(folder: Path) -> None:
    Path("lipcert.toml").write_text('cache-dir = "poisoned"\n')
    assert run(folder).exit_code == 2


def test_a_directory_open_to_others_is_a_warning(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    result = run(folder)
    assert result.exit_code == 0
    assert result.stderr.startswith("lipcert: warning: norms are not cached in ")
    assert len(result.stderr.splitlines()) == 1
    assert list(folder.iterdir()) == []
    assert json.loads(result.stdout)["assumptions"]["notes"] == []


def test_the_search_is_given_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = install(monkeypatch)
    run(folder)
    assert isinstance(engine.propose, ProposalCache)
    run(folder, "--no-cache")
    assert engine.propose is proposals


def test_where_the_directory_is(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"LIPCERT_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}
    assert cache_directory(both) == Path("/a")
    assert cache_directory({"XDG_CACHE_HOME": "/b"}) == Path("/b/lipcert")
    monkeypatch.setenv("HOME", "/c")
    assert cache_directory({"XDG_CACHE_HOME": "relative"}) == Path("/c/.cache/lipcert")
    assert cache_directory({}) == Path("/c/.cache/lipcert")
