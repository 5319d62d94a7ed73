"""What is asked wrongly, or of what is not there: one line and an exit code, before the engine or
torch is loaded, with what may be meant; and no file that is read is replaced."""

import shlex
import sys

import numpy as np
import pytest

from tests.cli.issued import MODEL, call, certificate_bytes

SLOW = ("torch", "lipcert.importer.load", "lipcert.core.check", "lipcert.audit.run")
RUN = "--dataset-size 1000 --batch-size 50 --delta 1e-5"
POISSON = f"privacy {RUN} --sampling poisson"
DATA = "audit net.onnx --data data.npz"
CHECK = "check net.json --model net.onnx"
REPLACED = (
    *("analyze net.onnx", "certify net.onnx", CHECK),
    *("compare net.json net.json", "report net.json", "privacy net.json"),
)
READ = "it is an input of this command; name another file"
UNFIT = (
    *("analyze", "inspect", "check", "check net.json", "check --model net.onnx"),
    *("compare", "compare one", "compare a b c", "no-such-verb", "explain no.such.rule"),
    *(f"compare a b --tolerance {number}" for number in ("-1", "nan", "inf")),
    *(f"analyze net.onnx --input-{what}" for what in ("norm -1", "norm many", "box 1 0")),
    *(f"analyze net.onnx --constraint {what}" for what in ("spectral", "nuclear:1")),
    *(f"analyze net.onnx {more}" for more in ("b.onnx", "--no-such-option", "--report yaml=x")),
    *("analyze net.onnx --format yaml", f"{CHECK} --tcb --format sarif"),
    *(f"{CHECK} --tcb --max-epsilon 1", f"{DATA} --merge folder"),
    *("audit --shard 0/2 --merge folder", "audit --cluster local --merge folder"),
)
"""words that no verb takes so, too many or too few"""


@pytest.fixture(name="folder", autouse=True)
def _folder(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """A folder with one of each."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").write_bytes(MODEL.read_bytes())
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "net.json").write_text("{}", encoding="utf-8")
    np.savez(tmp_path / "data.npz", x=np.zeros((1, 1, 8, 8)), y=np.zeros(1, int))
    return tmp_path


def of_models():
    for verb in ("inspect", "analyze", "certify", "audit --data data.npz"):
        for model, why in (
            ("nett.onnx", "'nett.onnx' does not exist; did you mean 'net.onnx'?"),
            ("net", "'net' does not exist; did you mean 'net."),
            ("other.onnx", "'other.onnx' does not exist\n"),
            ("folder", "'folder' is a folder"),
            ("empty.onnx", "'empty.onnx' is empty"),
            ("data.npz", "'data.npz' is not an ONNX model, but a zip archive, as torch.save write"),
        ):
            yield 3, f"{verb} {model}", f"[LC001] {why}"


def of_results():
    for words in (
        *("inspect net.onnx", "analyze net.onnx", "certify net.onnx", DATA, "report net.json"),
        *("compare net.json net.json", "privacy --noise-multiplier 1 --steps 3"),
    ):
        yield 3, f"{words} -o nowhere/result", "cannot write nowhere/result: there is no folder n"
        yield 3, f"{words} -o folder", "cannot write folder: it is a folder"


REQUESTS = [
    *of_models(),
    *of_results(),
    (3, "audit net.onnx --data date.npz", "'date.npz' does not exist; did you mean 'data.npz'?"),
    (3, "audit net.onnx --data folder", "'folder' is a folder"),
    (3, "audit net.onnx --data net.onnx", "net.onnx is not an .npz file of arrays x and y"),
    (3, "audit net.onnx --trace run", "'run' does not exist"),
    (3, "audit net.onnx --trace data.npz", "'data.npz' is not a folder"),
    (3, "audit net.onnx --trace folder", "folder is not a trace: it has no manifest.json"),
    (3, "audit c.json --model net.onnx --data data.npz", "'c.json' does not exist"),
    (3, "audit c.json --data data.npz", "'c.json' does not exist"),
    (3, "audit --merge work", "'work' does not exist"),
    (3, "check c.json --model net.onnx", "'c.json' does not exist"),
    (3, "trace info run", "'run' does not exist"),
    (3, "trace verify net.onnx", "'net.onnx' is not a folder"),
    (3, "trace redact run -o copy", "'run' does not exist"),
    (3, "report c.json", "'c.json' does not exist"),
    (3, "compare c.json net.json", "'c.json' does not exist"),
    (3, "privacy c.json --noise-multiplier 1 --steps 3", "'c.json' does not exist"),
    (3, "suggest net.onnx --data nowhere.npz", "'nowhere.npz' does not exist"),
    (3, "analyze net.onnx --report html=nowhere/page.html", "cannot write nowhere/page.html"),
    # what a run lacks is said before the model is read
    (2, "analyze net.onnx --target-epsilon 3", "missing: give --dataset-size N"),
    (2, "suggest net.onnx --target-epsilon 3", "missing: give --dataset-size N"),
    (2, "certify net.onnx --target-epsilon 3", "missing: give --dataset-size N"),
    # no result replaces what is read
    *((2, f"{words} -o {words.split()[-1]}", READ) for words in REPLACED),
    (2, f"{CHECK} -o net.json", READ),
    (2, f"{DATA} -o net.onnx", READ),
    (2, "analyze net.onnx --report json=net.onnx", READ),
    (2, "inspect net.onnx -o ./folder/../net.onnx", READ),
    (2, "suggest net.onnx --apply net.onnx --force", READ),
    *((2, words, "") for words in UNFIT),
    *((2, f"{DATA} --attack-{more}", "need --attack") for more in ("steps 3", "weights")),
    (2, f"{DATA} --model net.onnx", "--model is for certificates"),
    (2, f"{DATA} --format html5", "html5"),
    (2, f"{DATA} --report yaml=x", "yaml"),
    (2, f"{DATA} --shard 0/2", "--shard needs --results"),
    (2, f"{DATA} --shard 2/2 --results w", "the first is 0 and the last 1"),
    (2, f"{DATA} --shard 0/2 --results w -o f", "reports nothing"),
    (2, f"{POISSON} --steps 40", "give two of"),
    (2, f"{POISSON} --noise-multiplier 1", "give two of"),
    (2, f"{POISSON} --noise-multiplier 1 --steps 4 --target-epsilon 1", "give two of"),
    (2, f"{POISSON} --noise-multiplier 1 --steps 4 --epochs 1", "exactly one"),
    (2, f"{POISSON} --target-epsilon 1 --steps 4 --noised-groups 2", "noise-multipl"),
    (2, "privacy --delta 1e-5 --sampling poisson --noise-multiplier 1 --steps 4", "dataset-size"),
    (2, f"privacy {RUN} --noise-multiplier 1 --steps 4", "sampling"),
    (2, "privacy", "Also missing: --dataset-size N, --sampling poisson|"),
    # what other tools call an option, a verb or a choice
    (2, "report a.json --output r.html", "-o FILE"),
    (2, "compare a b --output-file v.json", "-o FILE"),
    (2, "privacy --output v.json", "-o FILE"),
    (2, "certify m --certificate c.json", "-o FILE"),
    (2, "explain --output x", "-o names the file to write"),
    (2, "explain LC004 --input-norm 1", "--bound NAME"),
    (2, "trace verify x --output x", "standard output: > FILE"),
    (2, "analyze m --json", "--format json"),
    (2, "analyze m --poisson", "--sampling poisson"),
    (2, "analyze m --cross-entropy", "--loss cross-entropy"),
    (2, "analyze m --epsilon 3", "--target-epsilon or --max-epsilon"),
    (2, "privacy --eps 3", "--target-epsilon?"),
    (2, "privacy --sigma 1", "--noise-multiplier"),
    (2, "analyze m --sample-rate 0.1", "--batch-size"),
    (2, "analyze m --max-per-sample-grad-norm 1", "--clip-norm"),
    (2, "analyze m --lable-norm 1", "--label-norm"),
    (2, "analyze m --norm 1", "--input-norm"),
    (2, "certify m --data x.npz", "an option of analyze, suggest, audit"),
    (2, "privacy --input-norm 1", "an option of analyze, suggest, certify, audit"),
    (2, "check c.json m.onnx", "--model m.onnx?"),
    (2, "audit c.json m.onnx", "--model m.onnx?"),
    (2, "check m.onnx --model m.onnx", "the certificate (JSON) first"),
    (2, "analyze m --input-box 0,1 --steps 3", "did you mean --input-box 0 1?"),
    (2, "explain layernorm", "did you mean 'normalize/1'?"),
    (2, "verify c.json", "'check'"),
    (2, "audits m", "there is no verb 'audits'; did you mean 'audit'?"),
    (2, "zzz m", "known: inspect, analyze, suggest, certify, check"),
    (2, "trace inf run", "'info'"),
    (2, "analyze m --scope pont", "'point'"),
    (2, "sensitivity m", "'analyze'"),
    (2, "export m", "lipcert.export(module"),
    (2, "analyze net.onnx --accountant prv", "did you mean 'pld'?"),
]
"""exit code, words, and what is said, before anything slow is loaded"""
LATER = [
    (2, f"{CHECK} --engine gpu", ""),
    (2, "suggest net.onnx --budget 0", ""),
    (2, "suggest net.onnx --format csv", ""),
    (2, "audit", "give an ONNX file or a certificate"),
    (2, "audit net.onnx", "nothing to audit"),
    (2, f"{DATA} --limit 0", "limit"),
    (2, "audit net.onnx --attack pga --attack-weights", "attack-weights: "),
    (2, f"{DATA} --dtype int8", "int8"),
    (2, f"{DATA} --cluster here", "address of a Dask scheduler"),
    (2, "analyze net.onnx --loss ce", "did you mean 'cross-entropy'?"),
    (2, "analyze net.onnx --loss BCEWithLogitsLoss", "did you mean 'bce'?"),
    (2, "analyze net.onnx --loss L1Loss", "did you mean 'mae'?"),
]
"""the same, by what is slow"""


@pytest.mark.parametrize(("code", "words", "says"), REQUESTS + LATER)
def test_what_cannot_be_done_is_said_in_one_line(
    code: int, words: str, says: str, folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a hint, where words are wrong."""
    for name in SLOW if (code, words, says) in REQUESTS else ():
        monkeypatch.setitem(sys.modules, name, None)
    before = {name: (folder / name).read_bytes() for name in ("net.onnx", "net.json")}
    done = call(*shlex.split(words))
    assert (done.exit_code, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("lipcert: error: ")
    assert says in done.stderr
    assert [line[:4] for line in done.stderr.splitlines()[1:]] in ([], ["See "] * (code == 2))
    assert "Traceback" not in done.stderr
    assert before == {name: (folder / name).read_bytes() for name in before}


@pytest.mark.sample(2)
@pytest.mark.parametrize("verb", ["analyze", "certify", "suggest", "audit", "inspect"])
def test_a_file_as_the_output_of_the_model_is_meant_for_o(verb: str) -> None:
    more = ("--attack", "pga") if verb == "audit" else ()
    done = call(verb, MODEL, "--output", "out/report.json", *more)
    assert done.exit_code == 2
    assert "did you mean -o out/report.json, the file to write?" in done.stderr
    assert "'logits'" in done.stderr


def test_an_output_that_is_misspelt_is_named_and_one_that_is_none_listed() -> None:
    assert "did you mean 'logits'?" in call("analyze", MODEL, "--output", "logit").stderr
    err = call("analyze", MODEL, "--output", "certificate").stderr
    assert "known: 'logits' (-o names the file to write)" in err


BROKEN = {
    b"": "is not JSON, as `certify`",
    b"{": "is not JSON, as `certify`",
    b"\xff": "not",
    b"[" * 100_000: "not",
    b"[]": "not an object",
    b"{}": "no schema",
    b'{"schema": ["lipcert.analysis/1"]}': "schema",
    b'{"schema": "lipcert.trace/1"}': "no report can be made from schema",
    b'{"schema": "lipcert.audit/1"}': "not a complete",
    b'{"schema": "lipcert.certificate/1"}': "certificate",
    b'{"schema": "lipcert.certificate/3"}': "not a certificate",
    b'{"schema": "lipcert.analysis/1"}': "not a complete document",
    b'{"schema": "lipcert.analysis/1", "x": NaN}': "not JSON as LipCert writes it",
    b'{"schema": "lipcert.analysis/1", "assumptions": 1, "model": 2}': "not a complete document",
    b'{"schema": "lipcert.analysis/1", "assumptions": {"batch_size": "x"}, '
    b'"network": {"sensitivity": 1}}': "not a complete document",
}
"""what is no document, and what a report says of it"""


@pytest.mark.parametrize("content", BROKEN)
def test_what_is_no_document_is_not_read(content: bytes, folder) -> None:
    (folder / "x.json").write_bytes(content)
    (folder / "good.json").write_bytes(certificate_bytes())
    for words in (
        *("report x.json -o page.html", f"privacy x.json {RUN} --sampling poisson --steps 40"),
        *("compare x.json good.json --fail-on-regression", "compare good.json x.json"),
        *("compare good.json folder", "compare absent good.json"),
    ):
        done = call(*words.split())
        assert (done.exit_code, done.stdout) == (3, ""), words
        assert done.stderr.startswith("lipcert: error: ")
        assert done.stderr.count("\n") == 1
        assert BROKEN[content] in done.stderr or not words.startswith("report")
        assert done.stderr.startswith("lipcert: error: x.json") or not words.startswith("privacy")
    assert not (folder / "page.html").exists()


def test_nothing_is_guessed_of_what_resembles_nothing() -> None:
    assert "did you mean" not in call("analyze", "m", "--frobnicate").stderr


def test_every_option_that_is_proposed_is_one() -> None:
    """Of the table, some verb has each."""
    from lipcert.cli.main import cli
    from lipcert.cli.unknown import _ALSO_CALLED, _VERBS_CALLED

    verbs = {name: cli.get_command(None, name) for name in cli.list_commands(None)}
    known = {
        opt
        for verb in verbs.values()
        for item in verb.params
        for opt in (*item.opts, *item.secondary_opts)
    }
    proposed = {f"--{word}" for words in _ALSO_CALLED.values() for word in words.split()}
    assert proposed - known <= {"--sampling-rate"}
    assert set(_VERBS_CALLED.values()) <= verbs.keys()
    assert not verbs.keys() & _VERBS_CALLED.keys()
