"""`lipcert report`: from files that the verbs wrote to one page."""

import json

import pytest

from tests.cli.issued import MODEL, WORDS, call, certificate_bytes


@pytest.fixture(name="files", scope="module")
def _files(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("report")
    files = {name: folder / f"{name}.json" for name in ("analysis", "certificate", "check")}
    files["certificate"].write_bytes(certificate_bytes())
    words = ("--format", "json", "-o")
    assert call("analyze", MODEL, *WORDS, *words, files["analysis"]).exit_code == 0
    done = call("check", files["certificate"], "--model", MODEL, *words, files["check"])
    assert done.exit_code == 3
    return files


def test_everything_about_a_model_is_one_page(files, tmp_path) -> None:
    page = tmp_path / "report.html"
    done = call("report", *files.values(), "-o", page)
    assert (done.exit_code, done.stdout) == (0, "")
    text = page.read_text(encoding="utf-8")
    for word in ("CONDITIONAL", "COSTLY", "ε = ", "A-SAMPLING", "digits_mlp.onnx"):
        assert word in text
    promise = json.loads(files["check"].read_text(encoding="utf-8"))["promise"]
    assert all(sentence in text for sentence in promise)
    assert {"epsilon-sigma", "values", "cotangents"} <= {
        part.split('"')[0] for part in text.split('<figure id="')[1:]
    }


def test_a_certificate_alone_is_claimed_and_not_proved(files) -> None:
    text = call("report", files["certificate"]).stdout
    assert "CLAIMED" in text
    assert "This report does not include a check of this certificate" in text
    assert "CONDITIONAL" not in text


def test_json_holds_the_documents_as_they_were(files) -> None:
    done = call("report", *files.values(), "--format", "json")
    found = json.loads(done.stdout)
    assert found["schema"] == "lipcert.report/1"
    documents = {source["schema"]: source["document"] for source in found["sources"]}
    for file in files.values():
        document = json.loads(file.read_text(encoding="utf-8"))
        assert documents[document["schema"]] == document


def test_markdown_says_the_same_without_charts(files) -> None:
    text = call("report", *files.values(), "--format", "markdown").stdout
    assert text.startswith("# LipCert report")
    assert "# LipCert check\n\n**Conditional\\: assumptions are neither" in text
    assert "| hidden1.weight | 128×64 |" in text
    assert "<svg" not in text


def test_a_check_of_another_certificate_is_refused(files, tmp_path) -> None:
    other = tmp_path / "other.json"
    document = json.loads(files["check"].read_text(encoding="utf-8"))
    other.write_text(json.dumps({**document, "certificate": "ab" * 32}), encoding="utf-8")
    done = call("report", files["certificate"], other)
    assert done.exit_code == 2
    assert "check it again" in done.stderr
