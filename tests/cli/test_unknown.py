"""What a user gets who writes what other tools call an option, a verb or a choice."""

import pytest

from tests.cli.issued import MODEL, call


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


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("report", "a.json", "--output", "r.html"), "-o FILE"),
        (("compare", "a", "b", "--output-file", "v.json"), "-o FILE"),
        (("privacy", "--output", "v.json"), "-o FILE"),
        (("certify", "m", "--certificate", "c.json"), "-o FILE"),
        (("explain", "--output", "x"), "-o names the file to write"),
        (("explain", "LC004", "--input-norm", "1"), "--bound NAME"),
        (("trace", "verify", "x", "--output", "x"), "standard output: > FILE"),
        (("analyze", "m", "--json"), "--format json"),
        (("analyze", "m", "--poisson"), "--sampling poisson"),
        (("analyze", "m", "--cross-entropy"), "--loss cross-entropy"),
        (("analyze", "m", "--epsilon", "3"), "--target-epsilon or --max-epsilon"),
        (("privacy", "--eps", "3"), "--target-epsilon?"),
        (("privacy", "--sigma", "1"), "--noise-multiplier"),
        (("analyze", "m", "--sample-rate", "0.1"), "--batch-size"),
        (("analyze", "m", "--max-per-sample-grad-norm", "1"), "--clip-norm"),
        (("analyze", "m", "--lable-norm", "1"), "--label-norm"),
        (("analyze", "m", "--norm", "1"), "--input-norm"),
        (("certify", "m", "--data", "x.npz"), "an option of analyze, suggest, audit"),
        (("privacy", "--input-norm", "1"), "an option of analyze, suggest, certify, audit"),
        (("check", "c.json", "m.onnx"), "--model m.onnx?"),
        (("audit", "c.json", "m.onnx"), "--model m.onnx?"),
        (("check", "m.onnx", "--model", "m.onnx"), "the certificate (JSON) first"),
        (("analyze", "m", "--input-box", "0,1", "--steps", "3"), "did you mean --input-box 0 1?"),
        (("explain", "layernorm"), "did you mean 'normalize/1'?"),
        (("verify", "c.json"), "'check'"),
        (("audits", "m"), "there is no verb 'audits'; did you mean 'audit'?"),
        (("zzz", "m"), "known: inspect, analyze, suggest, certify, check"),
        (("trace", "inf", "run"), "'info'"),
        (("analyze", "m", "--scope", "pont"), "'point'"),
        (("sensitivity", "m"), "'analyze'"),
        (("export", "m"), "lipcert.export(module"),
        (("analyze", str(MODEL), "--loss", "ce"), "did you mean 'cross-entropy'?"),
        (("analyze", str(MODEL), "--loss", "BCEWithLogitsLoss"), "did you mean 'bce'?"),
        (("analyze", str(MODEL), "--loss", "L1Loss"), "did you mean 'mae'?"),
        (("analyze", str(MODEL), "--accountant", "prv"), "did you mean 'pld'?"),
    ],
)
def test_what_is_meant(words: tuple[str, ...], meant: str) -> None:
    done = call(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert meant in done.stderr


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
