"""Reading `lipcert.analysis/1` back into the records it was written from.

What enters: the document. What leaves: the analysis (without an account of its run) and what it
says in words. Findings are read apart, since a later version may know more codes.
"""

from __future__ import annotations

from lipcert.analysis.records import (
    AllocationReport,
    Analysis,
    Assumptions,
    GroupReport,
    ModelReport,
    NetworkReport,
    NodeReport,
    ParameterReport,
)
from lipcert.diagnostics import CODES, Diagnostic, Level
from lipcert.modes import EvalLayer
from lipcert.report.statements import answer_rows, assumption_rows, promise
from lipcert.report.study.fields import FieldError, Fields
from lipcert.report.study.records import AnalysisFacts, Finding


def read_analysis(document: Fields) -> AnalysisFacts:
    """The analysis in a document; `FieldError` where it is not a complete one."""
    analysis = Analysis(
        model=_model(document.child("model")),
        assumptions=_assumptions(document.child("assumptions")),
        nodes=tuple(_node(item) for item in document.children("nodes")),
        parameters=tuple(_parameter(item) for item in document.children("parameters")),
        groups=tuple(_group(item) for item in document.children("groups")),
        allocations=tuple(
            AllocationReport(
                item.text("name"), item.needed("noise_energy"), item.flag("chosen", False)
            )
            for item in document.children("allocations")
        ),
        network=_network(document.child("network")),
        privacy=None,
        diagnostics=tuple(
            Diagnostic(item.code, Level(item.level), item.node, item.message, item.remedy)
            for item in findings_of(document)
            if item.code in CODES and item.level in {level.value for level in Level}
        ),
    )
    try:
        return AnalysisFacts(
            analysis,
            promise(analysis),
            tuple(assumption_rows(analysis)),
            tuple(answer_rows(analysis)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FieldError(f"{document.where}.assumptions: {error}") from error


def findings_of(document: Fields) -> tuple[Finding, ...]:
    """The list `diagnostics` of any document."""
    return tuple(
        Finding(
            item.text("code", ""),
            item.text("level", "info"),
            item.text("node", ""),
            item.text("message", ""),
            item.text("remedy", ""),
        )
        for item in document.children("diagnostics")
    )


def _model(model: Fields) -> ModelReport:
    opset = model.child("opset")
    return ModelReport(
        path=model.text("path"),
        sha256=model.text("sha256"),
        parameters=model.whole("parameters"),
        opset={name: opset.whole(name) for name in opset.members},
        producer=model.text("producer", ""),
    )


def _assumptions(facts: Fields) -> Assumptions:
    box = facts.numbers("input_box")
    loss = facts.scalars("loss")
    return Assumptions(
        input_norm=facts.number("input_norm"),
        input_box=_box(facts, box) if box else None,
        loss={name: value for name, value in loss.items() if name != "reduction"},
        scope=facts.text("scope"),
        constraints={
            name: str(value) for name, value in facts.child("constraints").members.items()
        },
        neighbours=facts.text("neighbours"),
        reduction=facts.text("reduction"),
        batch_size=facts.whole("batch_size") if facts.has("batch_size") else None,
        allocation=facts.text("allocation"),
        noise_multiplier=facts.needed("noise_multiplier"),
        mechanism=facts.scalars("mechanism"),
        batch=facts.text("batch"),
        tier=facts.text("tier", ""),
        arithmetic=facts.text("arithmetic", ""),
        notes=facts.texts("notes"),
        eval_layers=tuple(
            EvalLayer(item.text("kind"), item.text("name"), item.text("node", ""))
            for item in facts.children("eval_mode")
        ),
    )


def _box(facts: Fields, ends: tuple[float | None, ...]) -> tuple[float, float]:
    match ends:
        case (float(low), float(high)):
            return low, high
    raise FieldError(f"{facts.where}.input_box is not a pair of numbers")


def _node(item: Fields) -> NodeReport:
    return NodeReport(
        name=item.text("name"),
        op=item.text("op"),
        inputs=item.texts("inputs"),
        output=item.text("output"),
        shape=item.wholes("shape"),
        input_norm=item.number("input_norm"),
        output_norm=item.number("output_norm"),
        operator_norm=item.number("operator_norm"),
        input_lipschitz=item.numbers("input_lipschitz"),
        cotangent_norm=item.number("cotangent_norm"),
        rule=item.text("rule", ""),
        reason=item.text("reason", ""),
        remedy=item.text("remedy", ""),
    )


def _parameter(item: Fields) -> ParameterReport:
    return ParameterReport(
        name=item.text("name"),
        shape=item.wholes("shape"),
        node=item.text("node"),
        trainable=item.flag("trainable", True),
        group=item.word("group"),
        grad_norm=item.number("grad_norm"),
        sensitivity=item.number("sensitivity"),
        noise_std=item.number("noise_std"),
    )


def _group(item: Fields) -> GroupReport:
    return GroupReport(
        name=item.text("name"),
        parameters=item.texts("parameters"),
        dimension=item.whole("dimension"),
        grad_norm=item.number("grad_norm"),
        sensitivity=item.number("sensitivity"),
        noise_std=item.number("noise_std"),
        noise_energy_share=item.number("noise_energy_share"),
    )


def _network(item: Fields) -> NetworkReport:
    return NetworkReport(
        lipschitz=item.number("lipschitz"),
        output_norm=item.number("output_norm"),
        loss_cotangent_norm=item.number("loss_cotangent_norm"),
        grad_norm=item.number("grad_norm"),
        sensitivity=item.number("sensitivity"),
        grad_norm_witness=item.number("grad_norm_witness"),
        lipschitz_witness=item.number("lipschitz_witness"),
    )
