"""load_model: from an untrusted ONNX file to a verified graph.

    path → gate → metadata → examples (fold, batch) → patterns → build → verify → ImportedModel

Invariant: nothing but ModelFileError and UnsupportedModelError leaves this function because of
what a file holds, and a graph that leaves it has been compared with onnxruntime.
"""

from __future__ import annotations

from pathlib import Path

from lipcert.diagnostics import Diagnostic, Level
from lipcert.errors import Refusal, UnsupportedModelError
from lipcert.importer.build.builder import WeightNaming
from lipcert.importer.build.translate import translate
from lipcert.importer.examples import separate_examples
from lipcert.importer.fold import StaticGraph, needed_values
from lipcert.importer.gate import open_model
from lipcert.importer.metadata import (
    Provenance,
    is_anonymous,
    read_provenance,
    training_refusals,
)
from lipcert.importer.model import ImportedModel
from lipcert.importer.patterns import recognise
from lipcert.importer.raw import RawInput, RawModel
from lipcert.importer.verify import verify
from lipcert.ir import Graph

__all__ = ["load_model"]


def load_model(
    path: Path, *, output: str | None = None, as_exported: bool = False
) -> ImportedModel:
    """Import an ONNX file.

    output: name of the output to follow, where there are several. as_exported: take the tensors
    of the file for the trained parameters even where the exporter folded others into them.
    """
    source = open_model(path)
    model = source.model
    target = _chosen_output(model, output)
    provenance = read_provenance(model.graph)
    refusals = training_refusals(model.graph)
    if refusals:
        raise UnsupportedModelError(refusals)
    examples = separate_examples(model, provenance, _only_input(model, target), target)
    naming, notes = _weight_naming(provenance, examples.graph, as_exported=as_exported)
    data_path = recognise(examples.graph)
    graph = translate(data_path, examples.layouts, naming)
    verification = verify(source.proto, examples, graph)
    return ImportedModel(
        graph=graph,
        path=str(path),
        sha256=model.sha256,
        opset=model.opset,
        producer=model.producer,
        batch=examples.proof,
        verification=verification,
        diagnostics=(
            *examples.diagnostics,
            *notes,
            *_override_notes(model, graph),
            *_name_notes(provenance, graph),
        ),
    )


def _chosen_output(model: RawModel, output: str | None) -> str:
    outputs = model.graph.outputs
    if output is None and len(outputs) == 1:
        return outputs[0]
    if output in outputs:
        return output
    listed = ", ".join(repr(name) for name in outputs[:8])
    reason = f"the model has {len(outputs)} outputs: {listed}"
    if output is not None:
        reason = f"there is no output {output!r}; {reason}"
    raise UnsupportedModelError(
        (Refusal("LC012", "", "", reason, "choose one output by its name"),)
    )


def _only_input(model: RawModel, output: str) -> RawInput:
    needed = needed_values(model.graph.nodes, output)
    inputs = [item for item in model.graph.inputs if item.name in needed]
    if len(inputs) == 1:
        return inputs[0]
    if not inputs:
        refusal = Refusal("LC008", "", "", f"the output {output!r} does not depend on any input")
    else:
        listed = ", ".join(repr(item.name) for item in inputs[:8])
        reason = f"the model has {len(inputs)} data inputs: {listed}"
        refusal = Refusal("LC010", "", "", reason, "join them into one tensor before the network")
    raise UnsupportedModelError((refusal,))


def _weight_naming(
    provenance: Provenance, graph: StaticGraph, *, as_exported: bool
) -> tuple[WeightNaming, tuple[Diagnostic, ...]]:
    """Which tensors are parameters, and a diagnostic where some are not what is trained."""
    missing = provenance.missing(graph.bound)
    touched = [node for node in graph.nodes if provenance.is_folded(node, missing)]
    mixed = _origins(graph, [name for node in touched for name in node.inputs])
    found = {name for node in graph.nodes for name in provenance.mentioned(node)}
    everything = _origins(graph, list(graph.constants))
    if missing - found:  # nobody knows where they went
        mixed = everything
    elif missing:
        mixed |= everything - provenance.targets
    trained = not provenance.signed or bool(missing) or as_exported
    mixed |= graph.absorbed & everything if not as_exported else set()
    naming = WeightNaming(trained, frozenset() if as_exported else frozenset(mixed))
    if not missing and not mixed:
        return naming, ()
    listed = ", ".join(repr(name) for name in sorted(missing)[:8]) or "batch normalization"
    note = Diagnostic(
        "LC009",
        Level.WARNING if as_exported else Level.ERROR,
        "",
        f"the exporter folded trained parameters into other tensors: {listed}",
        "torch.onnx.export(..., dynamo=True, optimize=False)",
    )
    return naming, (note,)


def _origins(graph: StaticGraph, names: list[str]) -> set[str]:
    views = [graph.constants[name].view for name in names if name in graph.constants]
    return {view.origin.name for view in views if view is not None and not view.origin.statistic}


def _override_notes(model: RawModel, graph: Graph) -> tuple[Diagnostic, ...]:
    names = [name for name in model.graph.overridable if name in graph.parameters]
    if not names:
        return ()
    message = (
        f"{len(names)} parameters are also graph inputs (such as {names[0]!r}) and can be"
        " overridden at run time; the values in the file are used"
    )
    return (Diagnostic("LC020", Level.WARNING, "", message, "export with IR version 4 or newer"),)


def _name_notes(provenance: Provenance, graph: Graph) -> tuple[Diagnostic, ...]:
    names = [name for name in graph.parameters if is_anonymous(name)]
    if provenance.signed or not names:
        return ()
    message = (
        f"{len(names)} tensors have made-up names (such as {names[0]!r}): batch normalization may"
        " have been folded into them"
    )
    remedy = "torch.onnx.export(..., dynamo=True, optimize=False)"
    return (Diagnostic("LC023", Level.WARNING, names[0], message, remedy),)
