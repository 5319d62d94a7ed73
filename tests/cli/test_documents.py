"""Verbs on documents: what changed and what is a regression; traces; formats and exit codes."""

import json
import re
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from math import inf, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.audit.trace.records import Manifest
from lipcert.core.certificate import Certificate, read_certificate
from lipcert.report.analysis import analysis_json
from lipcert.report.comparison import Assumed, Statement, compared, read_statement
from lipcert.text.certificate import write_certificate
from tests.audit.trace.made import made, opened, step
from tests.cli.issued import call, certificate_bytes
from tests.report.samples import sample
from tests.report.written import check_kept


@pytest.fixture(name="files")
def _files(tmp_path):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    for file in (old, new):
        file.write_bytes(certificate_bytes())
    return old, new


def change(file, by) -> None:
    file.write_bytes(write_certificate(by(read_certificate(file.read_bytes()))))


def compare(*words):
    return call("compare", *words)


def found(files, *words: str) -> dict:
    done = compare(*files, "--format", "json", *words)
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


def scaled(factor: float):
    """The bound of the gradient of the first parameter, times a factor."""

    def by(certificate: Certificate) -> Certificate:
        first, *rest = certificate.parameters
        bound = first.grad_norm * factor
        return replace(certificate, parameters=(replace(first, grad_norm=bound), *rest))

    return by


def with_input(norm: str | None, box: list[str] | None):
    data = ({} if norm is None else {"norm": norm}) | ({} if box is None else {"box": box})

    def by(certificate: Certificate) -> Certificate:
        items = {item.id: item for item in certificate.assumptions}
        items["A-INPUT"] = replace(items["A-INPUT"], data=data)
        return replace(certificate, assumptions=tuple(items.values()))

    return by


def test_nothing_changed(files) -> None:
    done = compare(*files, "--fail-on-regression")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("bounds: 0 grew, 0 shrank, 0 appeared, 0 disappeared;")
    assert lines[0].endswith("no regression")
    assert lines[-1] == "  model  both describe the same file"


@pytest.mark.parametrize(
    ("factor", "words", "code", "answer", "verdict"),
    [
        (1.25, [], 1, "bounds: 1 grew", "a regression"),
        (1 + 2**-52, [], 1, "bounds: 1 grew", "a regression"),
        (1.25, ["--tolerance", "0.26"], 0, "bounds: 1 grew", "no regression"),
        (1.25, ["--tolerance", "0.24"], 1, "bounds: 1 grew", "a regression"),
        (0.5, [], 0, "bounds: 0 grew, 1 shrank", "no regression"),
    ],
)
def test_a_bound_that_changed(
    files, factor: float, words: list[str], code: int, answer: str, verdict: str
) -> None:
    change(files[1], scaled(factor))
    done = compare(*files, "--fail-on-regression", *words)
    assert done.exit_code == code
    assert done.stdout.startswith(answer)
    assert f"; {verdict}\n" in done.stdout
    assert compare(*files, *words).exit_code == 0


def test_the_smallest_growth_is_shown(files) -> None:
    def next_above(certificate: Certificate) -> Certificate:
        first, *rest = certificate.parameters
        above = replace(first, grad_norm=nextafter(first.grad_norm, inf))
        return replace(certificate, parameters=(above, *rest))

    change(files[1], next_above)
    (row,) = [line for line in compare(*files).stdout.splitlines() if "parameter" in line]
    *_, old, new, _ = row.split()
    assert nextafter(float(old), inf) == float(new)


def test_bounds_that_disappear_are_regressions(files) -> None:
    change(files[1], lambda found: replace(found, parameters=found.parameters[1:]))
    result = found(files)
    assert result["counts"] == {"grew": 0, "shrank": 0, "appeared": 0, "disappeared": 1}
    assert (result["changes"][0]["new"], result["changes"][0]["regression"]) == (None, True)
    assert compare(*files, "--fail-on-regression").exit_code == 1
    assert compare(*reversed(files), "--fail-on-regression").exit_code == 0


def test_a_larger_epsilon_a_larger_delta_and_less_noise(files) -> None:
    def by(certificate: Certificate) -> Certificate:
        privacy = replace(certificate.privacy, epsilon=9.0, delta=Fraction(1, 99999))
        network = replace(certificate.network, noise_multiplier=0.5)
        return replace(certificate, privacy=privacy, network=network)

    change(files[1], by)
    worse = [item["quantity"] for item in found(files)["changes"] if item["regression"]]
    assert worse == ["noise_multiplier", "epsilon", "delta"]
    assert not any(item["regression"] for item in found(files[::-1])["changes"])


@pytest.mark.parametrize(
    ("norm", "box", "worse"),
    [
        (2.0, None, False),
        (0.5, None, True),
        (1.0, (-9.0, 9.0), True),
        (None, (-9.0, 9.0), True),
    ],
)
def test_an_assumption_of_less_is_no_regression(
    files, norm: float | None, box: tuple[float, float] | None, worse: bool
) -> None:
    ends = None if box is None else [end.hex() for end in box]
    change(files[1], with_input(None if norm is None else norm.hex(), ends))
    (item,) = found(files)["assumptions"]
    assert (item["id"], item["change"], item["regression"]) == ("A-INPUT", "changed", worse)
    assert compare(*files, "--fail-on-regression").exit_code == int(worse)


def test_assumptions_added_dropped_and_checked(files) -> None:
    def by(certificate: Certificate) -> Certificate:
        *others, last = certificate.assumptions
        rest = [
            replace(item, status="declared") if item.id == "A-PERSAMPLE" else item
            for item in others
        ]
        return replace(certificate, assumptions=(*rest, replace(last, id="A-MORE")))

    change(files[1], by)
    items = {
        item["id"]: (item["change"], item["regression"]) for item in found(files)["assumptions"]
    }
    assert items == {
        "A-PERSAMPLE": ("changed", True),
        "A-NUMERIC": ("dropped", False),
        "A-MORE": ("added", True),
    }
    back = {item["id"]: item["regression"] for item in found(files[::-1])["assumptions"]}
    assert back == {"A-PERSAMPLE": False, "A-NUMERIC": True, "A-MORE": False}
    sides = [statement({}, {"A": Assumed("x", not n, (1.0 + n,))}) for n in (False, True)]
    assert compared(*sides).regression


def test_the_identity_of_models(files) -> None:
    def saved_again(certificate: Certificate) -> Certificate:
        return replace(certificate, model=replace(certificate.model, sha256="0" * 64))

    def another(certificate: Certificate) -> Certificate:
        return replace(certificate, model=replace(certificate.model, structure="1" * 64))

    assert found(files)["model"] == "same"
    change(files[1], saved_again)
    assert found(files)["model"] == "saved-again"
    change(files[1], another)
    assert found(files)["model"] == "other"


def test_a_certificate_and_an_analysis_share_no_words(files) -> None:
    files[1].write_text(analysis_json(sample()))
    for pair in (files, files[::-1]):
        done = compare(*pair)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "of the kind" in done.stderr


def test_an_analysis_with_another_one(tmp_path) -> None:
    old, new = sample(), sample()
    assumptions = replace(new.assumptions, input_norm=27.0, tier="tight", neighbours="zero-out")
    network = replace(new.network, grad_norm=None, sensitivity=0.078)
    frozen, *_ = new.parameters
    files = tmp_path / "old.json", tmp_path / "new.json"
    files[0].write_text(analysis_json(old))
    files[1].write_text(
        analysis_json(
            replace(
                new,
                assumptions=assumptions,
                network=network,
                parameters=(replace(frozen, trainable=False), *new.parameters[1:]),
            )
        )
    )
    result = found(files)
    assert {item["id"] for item in result["assumptions"]} == {"input_norm", "neighbours"}
    kinds = {(item["section"], item["quantity"]): item["change"] for item in result["changes"]}
    assert kinds == {
        ("network", "grad_norm"): "disappeared",
        ("network", "sensitivity"): "shrank",
        ("parameter", "grad_norm"): "disappeared",
    }


def test_names_of_files_are_inert(tmp_path) -> None:
    files = tmp_path / "old.json", tmp_path / "new.json"
    files[0].write_text(analysis_json(sample("a\n::error::<b>[x](y)\x1b[2J")))
    files[1].write_text(analysis_json(sample()))
    for output_format in ("text", "markdown"):
        out = compare(*files, "--format", output_format).stdout
        assert "\x1b" not in out
        assert not any(line.lstrip().startswith("::") for line in out.splitlines())
        assert output_format == "text" or "<b>" not in out


@pytest.mark.parametrize("number", ["1e999", "-1", "NaN", "true", '"1"', "1" + "0" * 400])
def test_numbers_that_bound_nothing_are_refused(tmp_path, number: str) -> None:
    document = json.loads(analysis_json(sample()))
    document["network"]["lipschitz"] = "HERE"
    file = tmp_path / "a.json"
    file.write_text(json.dumps(document).replace('"HERE"', number))
    assert compare(file, file).exit_code == 3


def test_statements_hold_every_claim(files) -> None:
    data = files[0].read_bytes()
    certificate, statement = read_certificate(data), read_statement("c", json.loads(data), data)
    numbers = statement.numbers
    for claim in certificate.parameters:
        assert numbers["parameter", claim.name, "grad_norm"] == claim.grad_norm
    for group in certificate.groups:
        assert numbers["group", group.name, "sensitivity"] == group.sensitivity
    assert set(statement.assumptions) == {*(item.id for item in certificate.assumptions), "scope"}


BOUNDS = st.none() | st.floats(0, allow_infinity=False) | st.fractions(0, 1)
NUMBERS = st.dictionaries(
    st.tuples(st.just("group"), st.sampled_from("abc"), st.sampled_from(["G", "noise_std"])), BOUNDS
)


def statement(numbers: dict, assumptions: dict) -> Statement:
    return Statement("a", "analysis", "0", None, numbers, assumptions)


@pytest.mark.parametrize(("less", "worse"), [(8.0 - 1e-14, False), (8.0 - 1e-7, True)])
def test_last_digits_of_a_multiplier(less: float, worse: bool) -> None:
    found = (statement({("network", "", "noise_multiplier"): n}, {}) for n in (8.0, less))
    assert compared(*found).regression is worse


@given(NUMBERS, NUMBERS, st.floats(0, 1e6))
def test_changes_turn_around(old: dict, new: dict, tolerance: float) -> None:
    there = compared(statement(old, {}), statement(new, {}), tolerance)
    back = compared(statement(new, {}), statement(old, {}), tolerance)
    assert there.counts["grew"] == back.counts["shrank"]
    assert there.counts["appeared"] == back.counts["disappeared"]
    for place in {*old, *new}:
        before, after = old.get(place), new.get(place)
        allowed = before is None or (
            after is not None and Fraction(after) <= Fraction(before) * (1 + Fraction(tolerance))
        )
        worse = any(
            x.regression and (x.section, x.name, x.quantity) == place for x in there.changes
        )
        assert worse == (place[2] == "G" and not allowed)


def test_what_traces_say_is_what_is_kept(tmp_path) -> None:
    """One that was continued, its copies, and two ranks with one noise, of which one goes on."""
    folder, ranks = made(tmp_path / "one", 4), tmp_path / "ranks"
    opened(folder).close()
    manifest = Manifest({}, 2, {"w": (4, 3), "b": (4,)}, {"count": ()})
    with closing(opened(ranks, manifest)) as first:
        first.append(step(first, 0, detail=False))
    second = opened(ranks, manifest, 1)
    second.append(step(second, 0, rank=1, detail=False))
    said, digests = {}, {}
    for words in (
        ("info", folder),
        ("info", folder, "--format", "json"),
        ("info", ranks),
        ("verify", folder, "--format", "json"),
        ("redact", folder, "-o", tmp_path / "bare"),
        ("redact", folder, "-o", tmp_path / "kept", "--keep-weights", "--format", "json"),
        ("info", tmp_path / "bare"),
    ):
        done = call("trace", *words)
        assert (done.exit_code, done.stderr) == (0, "")
        shown = re.sub(r"(last.time\W+)\d.*", r"\1now", done.stdout.replace(str(tmp_path), ""))
        for digest in re.findall("[0-9a-f]{64}", shown):
            shown = shown.replace(digest, digests.setdefault(digest, f"digest {len(digests)}"))
        said[" ".join(map(str, words)).replace(f"{tmp_path}/", "")] = shown
    second.close()
    check_kept("traces.txt", said)


def test_verify(tmp_path) -> None:
    folder = made(tmp_path / "t", 2)
    done = call("trace", "verify", folder)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1] == "intact"
    blob = next((folder / "blobs").iterdir())
    blob.write_bytes(blob.read_bytes()[:-1])
    done = call("trace", "verify", folder)
    assert done.exit_code == 1
    assert "is corrupt" in done.stdout
    found = json.loads(call("trace", "verify", folder, "--format", "json").stdout)
    assert found["schema"] == "lipcert.trace-verification/1"
    (fault,) = found["faults"]
    assert (found["intact"], fault["kind"], fault["file"]) == (False, "blob", "steps-0.jsonl")
    assert fault["line"] in {2, 3}
    lines = folder / "steps-0.jsonl"
    lines.write_bytes(lines.read_bytes()[:-10])
    kinds = [
        item["kind"]
        for item in json.loads(call("trace", "verify", folder, "--format", "json").stdout)["faults"]
    ]
    assert sorted(kinds) == ["blob", "torn"]


def test_no_trace_is_no_verdict(tmp_path) -> None:
    for verb in ("info", "verify"):
        done = call("trace", verb, tmp_path)
        assert done.exit_code == 3
        assert "manifest.json" in done.stderr
        assert call("trace", verb, made(tmp_path / verb, 0)).exit_code == 3
    assert call("trace", "redact", tmp_path, "-o", tmp_path / "o").exit_code == 3
    assert call("trace", "redact", tmp_path / "info", "-o", tmp_path / "info").exit_code == 2
    assert call("trace", "redact", tmp_path / "info").exit_code == 2


def test_broken_chains_have_no_summary(tmp_path) -> None:
    folder = made(tmp_path / "t", 2)
    lines = folder / "steps-0.jsonl"
    lines.write_bytes(lines.read_bytes().replace(b'"rate":0.05', b'"rate":0.04', 1))
    done = call("trace", "info", folder)
    assert done.exit_code == 3
    assert "steps-0.jsonl, line 2" in done.stderr
    assert call("trace", "verify", folder).exit_code == 1


def test_names_in_a_trace_are_made_safe(tmp_path) -> None:
    with closing(opened(tmp_path / "t", Manifest({"x\x1b[31m": "::error::"}, 1, {"w": (1,)}))):
        pass
    done = call("trace", "info", tmp_path / "t")
    assert "\x1b" not in done.stdout
    assert "\\x3a:error::" in done.stdout
