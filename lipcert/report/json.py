"""JSON reports, version 1: other tools read these names; they are extended, never renamed.

What enters: result records. What leaves: one JSON object with exact names and floats in full
precision; "no bound" is null and NaN or infinity cannot occur. The text holds nothing but ASCII,
and no character sequence that a CI log would read as a command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lipcert.analysis.records import Analysis, Assumptions, NodeReport
    from lipcert.diagnostics import Diagnostic
    from lipcert.errors import Refusal
    from lipcert.modes import EvalLayer
    from lipcert.report.inspection import Inspection

JsonObject = Mapping[str, object]
_CODE: Final = re.compile(r"\[(LC\d{3})\]")


def dump(document: JsonObject) -> str:
    """Canonical text of a document, ending in a newline."""
    text = json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False)
    return text.replace("##", "#\\u0023").replace("\x7f", "\\u007f") + "\n"


def analysis_json(analysis: Analysis) -> str:
    """`lipcert.analysis/1`."""
    model, network = analysis.model, analysis.network
    return dump(
        {
            "schema": "lipcert.analysis/1",
            "model": {
                "path": model.path,
                "sha256": model.sha256,
                "parameters": model.parameters,
                "opset": dict(model.opset),
                "producer": model.producer,
            },
            "assumptions": _assumptions(analysis.assumptions),
            "nodes": [_node(node) for node in analysis.nodes],
            "parameters": [
                {
                    "name": parameter.name,
                    "shape": list(parameter.shape),
                    "node": parameter.node,
                    "trainable": parameter.trainable,
                    "grad_norm": parameter.grad_norm,
                    "sensitivity": parameter.sensitivity,
                    "noise_std": parameter.noise_std,
                    "group": parameter.group,
                }
                for parameter in analysis.parameters
            ],
            "groups": [
                {
                    "name": group.name,
                    "parameters": list(group.parameters),
                    "dimension": group.dimension,
                    "grad_norm": group.grad_norm,
                    "sensitivity": group.sensitivity,
                    "noise_std": group.noise_std,
                    "noise_energy_share": group.noise_energy_share,
                }
                for group in analysis.groups
            ],
            "allocations": [
                {
                    "name": allocation.name,
                    "noise_energy": allocation.noise_energy,
                    "chosen": allocation.chosen,
                }
                for allocation in analysis.allocations
            ],
            **_privacy(analysis),
            "network": {
                "lipschitz": network.lipschitz,
                "output_norm": network.output_norm,
                "loss_cotangent_norm": network.loss_cotangent_norm,
                "grad_norm": network.grad_norm,
                "sensitivity": network.sensitivity,
                "attained": network.attained,
                "grad_norm_witness": network.grad_norm_witness,
                "lipschitz_witness": network.lipschitz_witness,
            },
            "diagnostics": diagnostic_list(analysis.diagnostics),
        }
    )


def inspection_json(inspection: Inspection) -> str:
    """`lipcert.inspection/1`."""
    batch = inspection.batch
    return dump(
        {
            "schema": "lipcert.inspection/1",
            "model": {
                "path": inspection.path,
                "sha256": inspection.sha256,
                "parameters": sum(parameter.size for parameter in inspection.parameters),
                "opset": dict(inspection.opset),
                "producer": inspection.producer,
            },
            "inputs": [{"name": name, "shape": list(shape)} for name, shape in inspection.inputs],
            "outputs": [{"name": name, "shape": list(shape)} for name, shape in inspection.outputs],
            "nodes": [
                {
                    "name": node.name,
                    "op": node.op,
                    "inputs": list(node.inputs),
                    "output": node.output,
                    "shape": list(node.shape),
                    "parameters": dict(node.parameters),
                }
                for node in inspection.nodes
            ],
            "parameters": [
                {
                    "name": parameter.name,
                    "shape": list(parameter.shape),
                    "size": parameter.size,
                    "trainable": parameter.trainable,
                    "folded": parameter.folded,
                    "nodes": list(parameter.nodes),
                }
                for parameter in inspection.parameters
            ],
            "macro_layers": [
                {"kind": item.kind, "node": item.node, "nodes": list(item.nodes)}
                for item in inspection.macros
            ],
            "outline": inspection.outline
            and {
                "inputs": list(inspection.outline.inputs),
                "outputs": list(inspection.outline.outputs),
                "ops": dict(inspection.outline.ops),
                "tensors": inspection.outline.tensors,
                "numbers": inspection.outline.numbers,
            },
            "batch": batch
            and {"status": batch.status, "axis": batch.axis, "witness": batch.witness},
            **_eval_mode(inspection.eval_layers),
            "verification": inspection.verification
            and {
                "examples": inspection.verification.examples,
                "max_difference": inspection.verification.max_difference,
            },
            "unsupported": refusal_list(inspection.refusals),
            "diagnostics": diagnostic_list(inspection.diagnostics),
        }
    )


def error_json(exit_code: int, message: str, refusals: Sequence[Refusal] = ()) -> str:
    """`lipcert.error/1`: printed instead of a result; `code` is "" for errors without a page."""
    return dump(
        {
            "schema": "lipcert.error/1",
            "exit": exit_code,
            "code": _code(message),
            "message": message,
            "refusals": refusal_list(refusals),
        }
    )


def _code(message: str) -> str:
    """The diagnostic code in front of a message."""
    found = _CODE.match(message)
    return found.group(1) if found else ""


def refusal_list(refusals: Sequence[Refusal]) -> list[JsonObject]:
    """Every reason why a model is refused."""
    return [
        {
            "code": refusal.code,
            "node": refusal.node,
            "op": refusal.op,
            "reason": refusal.reason,
            "remedy": refusal.remedy,
        }
        for refusal in refusals
    ]


def _privacy(analysis: Analysis) -> JsonObject:
    """The object `privacy` where a run is described, else nothing."""
    if analysis.privacy is None:
        return {}
    from lipcert.report.privacy_object import privacy_object  # noqa: PLC0415  not for every verb

    return {"privacy": privacy_object(analysis.privacy, analysis.assumptions.allocation)}


def _assumptions(assumptions: Assumptions) -> JsonObject:
    box = assumptions.input_box
    return {
        "input_norm": assumptions.input_norm,
        "input_box": None if box is None else list(box),
        "loss": {**assumptions.loss, "reduction": assumptions.reduction},
        "scope": assumptions.scope,
        "constraints": dict(assumptions.constraints),
        "neighbours": assumptions.neighbours,
        "reduction": assumptions.reduction,
        "batch_size": assumptions.batch_size,
        "allocation": assumptions.allocation,
        "noise_multiplier": assumptions.noise_multiplier,
        "mechanism": dict(assumptions.mechanism),
        "batch": assumptions.batch,
        "tier": assumptions.tier,
        "arithmetic": assumptions.arithmetic,
        "notes": list(assumptions.notes),
        **_eval_mode(assumptions.eval_layers),
    }


def _eval_mode(layers: Sequence[EvalLayer]) -> JsonObject:
    """The list `eval_mode` of layers that training has to keep in it, where there are any."""
    found = [{"kind": item.kind, "name": item.name, "node": item.node} for item in layers]
    return {"eval_mode": found} if found else {}


def _node(node: NodeReport) -> JsonObject:
    return {
        "name": node.name,
        "op": node.op,
        "inputs": list(node.inputs),
        "output": node.output,
        "shape": list(node.shape),
        "input_norm": node.input_norm,
        "output_norm": node.output_norm,
        "operator_norm": node.operator_norm,
        "input_lipschitz": list(node.input_lipschitz),
        "cotangent_norm": node.cotangent_norm,
        "rule": node.rule,
        "reason": node.reason,
        "remedy": node.remedy,
    }


def diagnostic_list(diagnostics: Sequence[Diagnostic]) -> list[JsonObject]:
    """Every diagnostic with its remedy."""
    return [
        {
            "code": diagnostic.code,
            "level": diagnostic.level.value,
            "node": diagnostic.node,
            "message": diagnostic.message,
            "remedy": diagnostic.remedy,
        }
        for diagnostic in diagnostics
    ]
