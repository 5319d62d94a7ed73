"""`lipcert check` and `lipcert-check`: verdicts, exit codes, the last line, what is imported."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib.metadata import distribution
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from lipcert.core.certificate import Certificate, read_certificate
from lipcert.core.verdict import STAGES
from lipcert.text.certificate import write_certificate
from tests.cli.issued import (
    CONVOLUTIONAL,
    MODEL,
    MODELS,
    OTHER,
    WORDS,
    call,
    certificate_bytes,
    declared,
)

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = ("scipy", "onnxruntime", "click", "rich", "torch", "dp_accounting", "absl")
TRUSTED = ("lipcert.core", "lipcert.core.certificate")


@pytest.fixture(name="issued", scope="module")
def _issued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that no test changes, so that one run of the program serves all that ask."""
    file = tmp_path_factory.mktemp("issued") / "c.json"
    file.write_bytes(certificate_bytes())
    return file


def changed(file: Path, change) -> Path:
    file.write_bytes(write_certificate(change(read_certificate(file.read_bytes()))))
    return file


def last_line(text: str) -> tuple[str, str]:
    """Verdict and digest; no other line may hold the token."""
    *others, last = text.splitlines()
    token, verdict, digest = last.split()
    assert token == "LIPCERT-CHECK:"
    assert not any("LIPCERT-CHECK" in line for line in others)
    return verdict, digest


def test_declared_assumptions_make_a_verdict_conditional(file: Path) -> None:
    done = call("check", file, "--model", MODEL)
    assert (done.exit_code, done.stderr) == (3, "")
    assert last_line(done.stdout) == ("CONDITIONAL", sha256(file.read_bytes()).hexdigest())


@pytest.mark.parametrize("engine", ["float", "exact"])
def test_accepted_assumptions_make_it_valid(file: Path, engine: str) -> None:
    words = ["check", file, "--model", MODEL, "--engine", engine]
    done = call(*words, "--accept-assumption", declared())
    assert (done.exit_code, last_line(done.stdout)[0]) == (0, "VALID")
    one_by_one = [word for name in declared().split(",") for word in ("--accept-assumption", name)]
    assert call(*words, *one_by_one).stdout == done.stdout


@pytest.mark.parametrize("missing", declared().split(","))
def test_every_one_of_them_is_needed(file: Path, missing: str) -> None:
    words = ["--accept-assumption", declared(missing)]
    done = call("check", file, "--model", MODEL, *words, "--format", "json")
    assert done.exit_code == 3
    found = json.loads(done.stdout)
    assert [item["id"] for item in found["assumptions"] if item["open"]] == [missing]


def test_json(file: Path) -> None:
    done = call("check", file, "--model", MODEL, "--format", "json")
    found = json.loads(done.stdout)
    assert done.stdout.isascii()
    assert (found["schema"], found["verdict"]) == ("lipcert.check/1", "conditional")
    assert found["certificate"] == sha256(file.read_bytes()).hexdigest()
    assert [step["number"] for step in found["steps"]] == list(range(len(STAGES)))
    assert all(step["ok"] for step in found["steps"])
    assert (found["reasons"], found["notes"]) == ([], [])
    assert len(found["promise"]) == 4


def test_further_reports_of_one_check(issued: Path, tmp_path: Path) -> None:
    """Each is what that format is by itself."""
    words = ["check", issued, "--model", MODEL]
    files = {name: tmp_path / name for name in ("json", "junit", "sarif", "text")}
    further = [word for name, file in files.items() for word in ("--report", f"{name}={file}")]
    done = call(*words, *further, "--format", "github")
    assert (done.exit_code, done.stdout.startswith("::error file=")) == (3, True)
    for name, file in files.items():
        assert file.read_text(encoding="utf-8") == call(*words, "--format", name).stdout
    done = call(*words, "--report", f"html={tmp_path / 'page'}")
    assert (done.exit_code, done.stdout) == (2, "")


def test_another_model_is_invalid(file: Path) -> None:
    done = call("check", file, "--model", OTHER, "--accept-assumption", declared())
    assert (done.exit_code, last_line(done.stdout)[0]) == (1, "INVALID")
    assert "  1 the model is the one that it describes: no" in done.stdout
    assert f"  2 {STAGES[2]}: not reached" in done.stdout
    assert "What is proved" not in done.stdout


def test_a_smaller_epsilon_is_invalid_in_ascii(file: Path) -> None:
    def lower(found: Certificate) -> Certificate:
        epsilon = found.privacy.epsilon * 0.9
        return replace(found, privacy=replace(found.privacy, epsilon=epsilon))

    done = call("check", changed(file, lower), "--model", MODEL)
    assert done.exit_code == 1
    assert "epsilon is claimed to be" in done.stdout
    assert done.stdout.isascii()


def test_an_assumption_of_no_certificate_is_a_mistake(file: Path) -> None:
    words = ("check", file, "--model", MODEL, "--accept-assumption")
    done = call(*words, declared("A-RNG") + ",A-RGN")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "A-RGN: unknown" in done.stderr
    assert "A-PROJ, A-RNG, A-SAMPLING" in done.stderr
    table = (ROOT / "docs" / "certificates.md").read_text(encoding="utf-8")
    known = re.findall(r"^\| `(A-[A-Z-]+)`", table, re.MULTILINE)
    assert set(declared().split(",")) < set(known)
    assert call(*words, ",".join(known)).exit_code == 0  # one list for several certificates


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"hello", "a file that is no JSON"),
        (MODEL.read_bytes(), "a file that is no JSON"),
        (b'{"a": 1}', "JSON without a schema"),
        (b"[1]", "JSON without a schema"),
        (b'{"schema": "lipcert.analysis/1"}', "a document of the schema 'lipcert.analysis/1'"),
        (b'{"schema": "lipcert.certificate/3"}', ""),
    ],
)
def test_what_is_no_certificate_is_said_to_be_none(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "c.json").write_bytes(data)
    done = call("check", tmp_path / "c.json", "--model", MODEL)
    assert (done.exit_code, last_line(done.stdout)[0]) == (1, "INVALID")
    assert (f"Invalid: not a certificate, but {said}" in done.stdout) == bool(said)
    assert ("lipcert certify" in done.stdout) == bool(said)


@pytest.mark.parametrize("words", [[], ["c.json"], ["--model", "m.onnx"]])
def test_a_wrong_request_of_the_program_is_2(words: list[str]) -> None:
    assert program(*words).returncode == 2


@pytest.mark.parametrize(
    ("words", "accepted", "code", "outcomes"),
    [
        (["--max-grad-norm", "1e6", "--max-epsilon", "1e6"], True, 0, ["holds", "holds"]),
        (["--max-grad-norm", "1e6", "--max-sensitivity", "1e-6"], True, 1, ["holds", "exceeded"]),
        (["--max-epsilon", "1e-6"], False, 1, ["exceeded"]),
        (["--max-epsilon", "1e6"], False, 3, ["holds"]),
    ],
)
def test_gates_are_of_what_is_claimed(
    issued: Path, words: list[str], accepted: bool, code: int, outcomes: list[str]
) -> None:
    words = ["check", str(issued), "--model", str(MODEL), *words]
    words += ["--accept-assumption", declared()] if accepted else []
    done = call(*words)
    assert done.exit_code == code
    assert last_line(done.stdout)[0] == ("VALID" if accepted else "CONDITIONAL")
    assert re.findall(r"^  max-\S+ \[(\w+)\]", done.stdout, re.MULTILINE) == outcomes
    found = json.loads(call(*words, "--format", "json").stdout)["gates"]
    claimed = read_certificate(issued.read_bytes())
    numbers = {"max-grad-norm": claimed.network.grad_norm, "max-epsilon": claimed.privacy.epsilon}
    numbers["max-sensitivity"] = claimed.network.sensitivity
    assert all(item["found"] == numbers[item["gate"]] for item in found)
    root = fromstring(call(*words, "--format", "junit").stdout)
    cases = root.findall(".//testcase[@classname='lipcert.check.gate']/failure")
    assert len(cases) == sum(outcome != "holds" for outcome in outcomes)


def test_a_gate_of_what_is_not_proved_is_no_pass(file: Path) -> None:
    """Whatever the certificate says, and a number that it does not say."""
    words = ["--max-grad-norm", "1e6", "--format", "junit"]
    done = call("check", file, "--model", OTHER, *words)
    assert done.exit_code == 1
    assert fromstring(done.stdout).find(".//testcase[@name='max-grad-norm']/failure") is not None
    changed(file, lambda found: replace(found, network=replace(found.network, grad_norm=None)))
    done = call("check", file, "--model", MODEL, *words, "--accept-assumption", declared())
    assert done.exit_code == 3
    assert fromstring(done.stdout).find(".//testcase[@name='max-grad-norm']/failure") is not None


@pytest.mark.nightly
def test_weights_are_held_against_the_constraints(file: Path) -> None:
    model = CONVOLUTIONAL
    words = ["check", file, "--model", model, "--accept-assumption", declared(), "--weights"]
    file.write_bytes(certificate_bytes(model=model))
    assert call(*words, model).exit_code == 0
    assert call(*words, OTHER).exit_code == 1
    file.write_bytes(certificate_bytes("--constraint", "spectral:0.5", model=model))
    assert call(*words, model).exit_code == 3  # neither proved within nor seen outside


def test_what_must_be_trusted_is_listed() -> None:
    done = program("--tcb")
    assert done.returncode == 0
    files = {line.split()[2]: line.split()[1] for line in done.stdout.splitlines() if "  " in line}
    named = {name for name in files if name.startswith("lipcert/")}
    folders = (ROOT / "lipcert" / name for name in ("core",))
    sources = [file for folder in folders for file in folder.rglob("*.py")]
    sources.append(ROOT / "lipcert" / "__init__.py")
    assert named == {file.relative_to(ROOT).as_posix() for file in sources}
    assert files["lipcert/core/main.py"] == digest_of("lipcert/core/main.py")


def test_what_a_verdict_rests_on_is_what_the_check_has_loaded(issued: Path) -> None:
    words = [issued, "--model", MODEL, "--tcb"]
    done = program(*words)
    assert last_line(done.stdout) == last_line(program(*words[:3]).stdout)
    listed = {line.split()[2]: line.split() for line in done.stdout.splitlines() if "  lip" in line}
    ours = [name for name in modules(done) if is_of(name, ("lipcert",))]
    ours.remove("lipcert.core.trusted")  # which makes the list
    paths = {name.replace(".", "/") for name in ours}
    assert listed.keys() == {
        f"{path}/__init__.py" if (ROOT / path).is_dir() else f"{path}.py" for path in paths
    }
    assert all(digest == digest_of(name) for name, (_, digest, _) in listed.items())
    module = [sys.executable, "-m", "lipcert.core.main", *map(str, words)]
    run = subprocess.run(module, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout == done.stdout  # though main.py has another name there
    whole = {line.split()[2] for line in program("--tcb").stdout.splitlines() if "  " in line}
    assert listed.keys() < whole
    for unused in ("rules/softmax", "rules/attention", "norms/torus", "norms/integer_engine"):
        assert f"lipcert/core/{unused}.py" in whole - listed.keys()
    (total,) = [line for line in done.stdout.splitlines() if "trusted base: " in line]
    assert int(total.split()[2]) == sum(int(lines) for lines, _, _ in listed.values())


def test_what_a_verdict_rests_on_as_json(file: Path) -> None:
    words = [file, "--model", MODEL, "--format", "json"]
    found = json.loads(program(*words, "--tcb").stdout)
    base = found.pop("trusted_base")
    shown = json.loads(call("check", *words).stdout)
    assert shown.pop("promise")
    assert all(item.pop("text") for item in shown["assumptions"])
    assert found == shown
    assert base["lines"] == sum(file["lines"] for file in base["files"])
    assert {"Python", "numpy", "onnx", "protobuf"} == base["depends_on"].keys()


def test_the_verb_lists_what_the_program_lists(issued: Path, tmp_path: Path) -> None:
    words = [issued, "--model", MODEL, "--tcb"]
    done, wanted = call("check", *words), program(*words)
    assert (done.exit_code, done.stdout) == (wanted.returncode, wanted.stdout)
    assert call("check", "--tcb").stdout == program("--tcb").stdout
    written = tmp_path / "verdict.json"
    call("check", *words, "--format", "json", "-o", written)
    assert json.loads(written.read_text())["trusted_base"]["lines"] > 0


def test_the_program_runs_beside_numpy_onnx_and_protobuf_alone(file: Path, tmp_path: Path) -> None:
    """Where nothing else is installed but what onnx asks for, and of LipCert the trusted files."""
    site = tmp_path / "site"
    (site / "lipcert").mkdir(parents=True)
    for name in ("core", "__init__.py"):
        (site / "lipcert" / name).symlink_to(ROOT / "lipcert" / name)
    for installed in ("numpy", "onnx", "protobuf", "ml_dtypes", "typing_extensions"):
        held = distribution(installed)
        for top in {path.parts[0] for path in held.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(Path(str(held.locate_file(top))))
    code = (
        f"import sys; sys.path.append({str(site)!r})\n"
        "from lipcert.core.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = [file, "--model", MODEL, "--accept-assumption", declared()]
    isolated = [sys.executable, "-I", "-S", "-c", code, *map(str, words)]
    done = subprocess.run(isolated, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert last_line(done.stdout) == ("VALID", sha256(file.read_bytes()).hexdigest())


def digest_of(name: str) -> str:
    return sha256((ROOT / name).read_bytes()).hexdigest()


@cache
def program(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`lipcert-check` as a process of its own, with the names of its modules on standard error."""
    code = (
        "import sys; from lipcert.core.main import main\n"
        "try: code = main(sys.argv[1:])\n"
        "finally: sys.stderr.write('MODULES ' + ' '.join(sorted(sys.modules)) + '\\n')\n"
        "sys.exit(code)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=ROOT,
        env=environment or None,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def modules(done: subprocess.CompletedProcess[str]) -> list[str]:
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("MODULES ")]
    return line.split()[1:]


def is_of(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in packages)


def test_the_program_agrees_with_the_verb_and_imports_nothing_of_the_engine(issued: Path) -> None:
    done = program(issued, "--model", MODEL, "--accept-assumption", declared())
    verb = call("check", issued, "--model", MODEL, "--accept-assumption", declared())
    assert (done.returncode, done.stdout) == (0, verb.stdout)
    found = modules(done)
    assert "numpy" in found
    assert [name for name in found if is_of(name, FORBIDDEN)] == []
    ours = [name for name in found if is_of(name, ("lipcert",)) and name != "lipcert"]
    assert [name for name in ours if not is_of(name, TRUSTED)] == []


def test_listing_what_is_trusted_needs_the_standard_library_alone() -> None:
    found = modules(program("--tcb"))
    assert [name for name in found if is_of(name, (*FORBIDDEN, "numpy", "onnx", "google"))] == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("output_format", ["text", "json"])
def test_the_program_prints_the_same_whatever_the_encoding(
    issued: Path, output_format: str
) -> None:
    words = [issued, "--model", MODEL, "--format", output_format]
    done = program(*words, PYTHONIOENCODING="ascii", PATH="")
    assert done.returncode == 3
    assert done.stdout == program(*words).stdout


def test_the_program_leaves_with_the_codes_of_the_verb(issued: Path, tmp_path: Path) -> None:
    assert program(issued, "--model", MODEL).returncode == 3
    assert program(issued, "--model", OTHER).returncode == 1
    absent = program(tmp_path / "absent.json", "--model", MODEL)
    assert (absent.returncode, absent.stdout) == (3, "")
    assert absent.stderr.startswith("lipcert-check: error: ")


def test_a_certificate_is_canonical_and_about_the_file() -> None:
    data = certificate_bytes()
    certificate = read_certificate(data)
    assert write_certificate(certificate) == data
    assert certificate.model.sha256 == sha256(MODEL.read_bytes()).hexdigest()
    assert certificate.scope.kind == "constraint-set"
    assert certificate.privacy.status == "recomputed"


def test_certifying_twice_gives_the_same_bytes() -> None:
    assert certificate_bytes() == certificate_bytes("--no-progress")


def test_the_output_names_the_certificate_the_bounds_and_the_way_to_check(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    done = call("certify", MODEL, *WORDS, "-o", file)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"{file}: written, and accepted by the checker"
    assert lines[-1] == f"lipcert check {file} --model {MODEL}"
    assert "A-PROJ" in done.stdout
    assert "Not checked: that training followed the algorithm" in done.stdout


def test_what_was_certified_as_json(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    done = call("certify", MODEL, *WORDS, "-o", file, "--format", "json", "--engine", "exact")
    found, data = json.loads(done.stdout), file.read_bytes()
    network = read_certificate(data).network
    assert done.exit_code == 0
    assert found["schema"] == "lipcert.certification/1"
    assert (found["certificate"], found["verdict"]) == (str(file), "conditional")
    assert found["sha256"] == sha256(data).hexdigest()
    assert found["network"]["grad_norm"] == network.grad_norm
    assert found["network"]["sensitivity"] == network.sensitivity
    assert "A-INPUT" in found["open_assumptions"]


def test_without_a_name_it_lies_beside_the_model(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(MODEL.read_bytes())
    assert call("certify", model, *WORDS).exit_code == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["net.lipcert.json", "net.onnx"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mechanism", "weight-clipping", "--bias-norm", "0.001"], "scale the weights down"),
        (["--mechanism", "weight-clipping", "--constraint", "spectral:1"], "constraint-set"),
    ],
)
def test_what_certificates_cannot_state_is_3_and_writes_nothing(
    tmp_path: Path, words: list[str], message: str
) -> None:
    file = tmp_path / "c.json"
    file.write_text("old")
    done = call("certify", MODELS / "digits_mlp.onnx", "--batch-size", "8", *words, "-o", file)
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.startswith("lipcert: error: certify: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert file.read_text() == "old"
