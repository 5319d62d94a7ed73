"""Text, markdown and csv: what a reader needs comes first, and nothing is hidden silently."""

import csv
import io
from dataclasses import replace

import pytest

from lipcert.report import analysis as attribution
from lipcert.report.analysis import CSV_COLUMNS, analysis_csv, answer_rows, promise
from tests.report.samples import inspection, node, refused, sample
from tests.report.written import analysis_markdown, analysis_text, inspection_text


def text(show_all: bool = False, **changes) -> str:
    analysis = replace(sample(), **changes)
    return analysis_text(analysis, width=120, color=False, show_all=show_all)


def test_assumptions_and_answer_come_first() -> None:
    report = text()
    order = ["Assumptions", "ASSUMED", "Answer", "per-example gradient norm G", "Nodes", "Param"]
    places = [report.index(word) for word in order]
    assert places == sorted(places)


def test_the_first_lines_answer_the_question() -> None:
    network = replace(sample().network, sensitivity=0.125)
    verdict, _, promise, *_ = text(network=network).splitlines()
    assert verdict == sample().usefulness.sentence
    assert promise == (
        "One example, added or removed, moves the released mean of gradients by at most 0.125 in "
        "2-norm, if the assumptions hold."
    )
    assumptions = replace(sample().assumptions, neighbours="replace-one", reduction="sum")
    report = text(assumptions=assumptions)
    assert "One example, replaced by another, moves the released sum of gradients" in report


def test_how_loose_the_bounds_may_be() -> None:
    network = replace(sample().network, grad_norm_witness=20.05, lipschitz_witness=9.8)
    rows = dict(answer_rows(replace(sample(), network=network)))
    assert (
        rows["per-example gradient norm G"] == "≤ 40.201; the true value is at least 1/2.01 of this"
    )
    assert (
        rows["Lipschitz constant of the network"] == "≤ 9.8001, attained by an admissible example"
    )
    assert dict(answer_rows(sample()))["per-example gradient norm G"] == "≤ 40.201"


def test_no_sensitivity_is_said_first() -> None:
    lost = replace(sample().parameters[0], grad_norm=None)
    network = replace(sample().network, sensitivity=None)
    report = text(network=network, parameters=(lost, *sample().parameters[1:]))
    assert "No finite sensitivity: 1 of 2 trained tensors have no" in report.splitlines()[2]


def test_a_model_of_one_example_is_an_assumption() -> None:
    report = text(assumptions=replace(sample().assumptions, batch="per-example"))
    assert "is ASSUMED that each example of a batch passes alone" in report


def test_input_without_a_box() -> None:
    assumptions = replace(sample().assumptions, input_box=None)
    report = text(assumptions=assumptions, diagnostics=())
    assert "every example with 2-norm ≤ 28" in report
    assert "ASSUMED" not in report


def test_long_models_are_folded_and_say_so() -> None:
    nodes = tuple(node(f"layer{i}", inputs=(f"layer{i - 1}_out",)) for i in range(100))
    folded = text(nodes=nodes)
    assert "60 further rows: --all shows them" in folded
    assert "layer50 " not in folded
    assert "layer50 " in text(show_all=True, nodes=nodes)


def test_nodes_that_stretch_nothing_are_folded_first() -> None:
    flat = tuple(node(f"flat{i}", operator_norm=None, input_lipschitz=(1.0,)) for i in range(60))
    folded = text(nodes=(*flat, node("steep")))
    assert "steep" in folded
    assert "flat30 " not in folded


def test_where_the_bound_is_lost() -> None:
    nodes = (
        node("first", input_lipschitz=(2.0,)),
        node("flat", input_lipschitz=(1.0001,)),
        node("second", input_lipschitz=(1.0, 6.0, None)),
        node("absent", input_lipschitz=(None,)),
    )
    found = attribution.stretches(sample(nodes=nodes))
    assert [(bar.name, bar.number) for bar in found.rows] == [("second", "6×"), ("first", "2×")]


def test_gradient_shares_add_up() -> None:
    shares = attribution.gradient_shares(sample())
    assert abs(sum(shares.values()) - 1.0) < 1e-12
    assert "conv1.scale" not in shares


def test_no_shares_without_all_bounds() -> None:
    analysis = sample()
    lost = replace(analysis.parameters[1], grad_norm=None)
    analysis = replace(analysis, parameters=(analysis.parameters[0], lost))
    assert attribution.gradient_shares(analysis) == {}


def test_csv_is_the_table_of_parameters() -> None:
    rows = list(csv.DictReader(io.StringIO(analysis_csv(sample()))))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert float(rows[0]["sensitivity"]) == 0.0240234375
    assert rows[2]["sensitivity"] == ""
    assert [row["trainable"] for row in rows] == ["yes", "yes", "no"]


def test_markdown_has_the_same_answer() -> None:
    report = analysis_markdown(sample())
    assert "| per-example gradient norm G | ≤ 40.201 |" in report
    shown = text(show_all=True).splitlines()
    titles = [line.removeprefix("## ") for line in report.splitlines() if line.startswith("## ")]
    assert len(titles) == 8
    assert set(titles) <= {line.replace(":", "\\:") for line in shown}


def test_inspection_text() -> None:
    report = inspection_text(inspection(), width=100, color=False)
    assert "16×8×8" in report
    assert "independent of each other: proved" in report


def test_refused_inspection_text() -> None:
    report = inspection_text(refused(), width=100, color=False)
    assert "refused, for 2 reasons" in report
    assert "remedy: unroll loop1" in report


def test_equal_constraints_are_told_together() -> None:
    constraints = {f"layer{i}.weight": "spectral:1" for i in range(50)} | {"b": "frobenius:2"}
    report = text(assumptions=replace(sample().assumptions, constraints=constraints))
    assert "spectral:1 on 50 parameters; frobenius:2 on b" in report.replace("\n", " ")


@pytest.mark.parametrize(
    ("neighbours", "change"),
    [("add-remove", "added or removed"), ("replace-one", "replaced"), ("zero-out", "left out")],
)
def test_the_promise_names_the_neighbouring_relation(neighbours: str, change: str) -> None:
    analysis = sample()
    facts = replace(analysis.assumptions, neighbours=neighbours)
    assert f"One example, {change}" in promise(replace(analysis, assumptions=facts))
