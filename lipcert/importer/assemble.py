"""Assemble: from a checked model to a graph, and what its user must know about it.

    RawModel → metadata → examples (fold, batch) → patterns → build → Assembled

What enters: a `RawModel` and the choices of its user. What leaves: the graph, not yet compared with
the program of the core. Invariant: the same model gives the same graph, in this process or another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from lipcert.choices import nearest
from lipcert.diagnostics import Diagnostic, Level
from lipcert.errors import Refusal, UnsupportedModelError, UsageError
from lipcert.importer.build.builder import WeightNaming
from lipcert.importer.build.translate import translate
from lipcert.importer.calls import FX_NODE, call_of
from lipcert.importer.constant import Constant
from lipcert.importer.evaluation import eval_layers, eval_notes
from lipcert.importer.examples import Examples, separate_examples
from lipcert.importer.metadata import (
    Provenance,
    is_anonymous,
    is_recomputed,
    read_provenance,
    training_refusals,
)
from lipcert.importer.model import MacroLayer
from lipcert.importer.patterns import recognise
from lipcert.importer.raw import RawInput, RawModel, RawNode
from lipcert.importer.shared import separate_shared
from lipcert.importer.static_graph import StaticGraph, needed_values, values_read
from lipcert.importer.survey import distinct, operator_refusals
from lipcert.ir import BatchProof, Graph

_COMPUTED: Final = "the exporter or the graph computes these tensors from trained parameters: "
_FOLDED: Final = (
    "the exporter computed other tensors from trained parameters that the file does not hold, and"
    " does not always say which, so that others cannot be relied on either; missing are "
)
_IF_TRAINED: Final = "or --as-exported if these very tensors are what is trained"
_WHOLE: Final = f"torch.onnx.export(..., dynamo=True, optimize=False), {_IF_TRAINED}"
_PLAIN: Final = (
    "train plain weights (torch.nn.utils.parametrize.remove_parametrizations) and export with"
    f" torch.onnx.export(..., dynamo=True, optimize=False), {_IF_TRAINED}"
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    """A graph, and what is to be said about it."""

    graph: Graph
    batch: BatchProof
    diagnostics: tuple[Diagnostic, ...]
    macros: tuple[MacroLayer, ...]
    scattered: frozenset[str]


def assemble(checked: RawModel, output: str | None, *, as_exported: bool) -> Assembled:
    """Translate a model; `output` and `as_exported` are those of `load_model`."""
    provenance = read_provenance(checked.graph)
    separated = separate_shared(checked, provenance)
    model = separated.model
    target, examples = _followed(model, provenance, output)
    live = needed_values(model.graph.nodes, target)
    needed = [node for node in model.graph.nodes if live.intersection(node.output_names)]
    missing = provenance.missing(examples.graph.bound, needed, target)
    naming = _weight_naming(provenance, examples.graph, missing, as_exported=as_exported)
    data_path, macros = recognise(examples.graph)
    graph = translate(data_path, examples.layouts, naming)
    _check_all_followed(provenance, data_path, graph)
    graph = replace(graph, eval_layers=eval_layers(checked.graph.nodes, target))
    diagnostics = (
        *examples.diagnostics,
        *_output_notes(model, target),
        *_fold_notes(missing, _computed(data_path), graph, as_exported=as_exported),
        *_override_notes(model, graph),
        *_name_notes(provenance, graph),
        *_shared_notes(separated.added, graph),
        *eval_notes(graph.eval_layers),
        *_number_notes(examples.graph, needed, graph),
    )
    scattered = (examples.graph.scattered | separated.tied).intersection(graph.parameters)
    return Assembled(graph, examples.proof, diagnostics, macros, scattered)


def _followed(model: RawModel, provenance: Provenance, output: str | None) -> tuple[str, Examples]:
    """The output and the data path that leads to it, or every reason why there is none."""
    graph = model.graph
    refusals = list(training_refusals(graph))
    targets = list(graph.outputs)
    try:
        targets = [_chosen_output(model, output)]
        source = _only_input(model, targets[0])
        examples = separate_examples(model, provenance, source, targets[0])
    except UnsupportedModelError as error:
        found = (*refusals, *error.refusals, *operator_refusals(graph, targets))
        raise UnsupportedModelError(distinct(found)) from None
    if refusals:
        raise UnsupportedModelError(distinct(refusals))
    return targets[0], examples


def _chosen_output(model: RawModel, output: str | None) -> str:
    """The output asked for; otherwise the only one that no other output is computed from."""
    outputs = model.graph.outputs
    if output in outputs:
        return output
    final = _final_outputs(model)
    if output is None and len(final) == 1:
        return final[0]
    listed = ", ".join(repr(name) for name in outputs[:8])
    if output is not None:
        hint = nearest(output, outputs)
        raise UsageError(
            f"output: the model has no output {output!r}; {hint or f'known: {listed}'}"
        )
    reason = f"the model has {len(outputs)} outputs: {listed}"
    raise UnsupportedModelError(
        (Refusal("LC012", "", "", reason, "choose one output by its name (--output NAME)"),)
    )


def _final_outputs(model: RawModel) -> list[str]:
    """The outputs from which no other output is computed."""
    live = set(model.graph.outputs)
    read: set[str] = set()
    for node in reversed(model.graph.nodes):
        if any(name in live for name in node.outputs):
            names = values_read(node)
            live |= names
            read |= names
    return [name for name in model.graph.outputs if name not in read]


def _output_notes(model: RawModel, target: str) -> tuple[Diagnostic, ...]:
    """LC012 where the file has further outputs: the loss is assumed not to read them."""
    others = [name for name in model.graph.outputs if name != target]
    if not others:
        return ()
    listed = ", ".join(map(repr, others[:8]))
    message = f"the loss is taken to read the output {target!r} alone, not {listed}"
    return (Diagnostic("LC012", Level.WARNING, "", message, "choose another with --output NAME"),)


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
        refusal = Refusal(
            "LC010", "", "", reason, "join them into one tensor, or export all but one as constants"
        )
    raise UnsupportedModelError((refusal,))


def _weight_naming(
    provenance: Provenance, graph: StaticGraph, missing: frozenset[str], *, as_exported: bool
) -> WeightNaming:
    """Which tensors are parameters, and which of them are not what is trained."""
    mixed: set[str] = set()
    if not as_exported:
        touched = [node for node in graph.nodes if provenance.is_folded(node, missing)]
        mixed = _origins(graph, [name for node in touched for name in node.inputs])
        mentioned = {name for node in graph.nodes for name in provenance.mentioned(node)}
        everything = _origins(graph, list(graph.constants))
        if missing - mentioned or _is_hidden(provenance, graph):  # nobody knows where they went
            mixed = everything
        elif missing:
            mixed |= everything - provenance.targets
        if not provenance.signed:
            mixed |= {name for name in everything if is_recomputed(name)}
        mixed |= _unread(provenance, graph)
        mixed |= graph.absorbed
    trained = not provenance.signed or bool(missing) or as_exported
    return WeightNaming(trained, frozenset(mixed), as_exported)


def _unread(provenance: Provenance, graph: StaticGraph) -> set[str]:
    """Parameters that a call reads, while its nodes read other numbers in their place."""
    read: dict[str, set[str]] = {}
    said: dict[str, set[str]] = {}
    for node in graph.nodes:
        note = node.metadata.get(FX_NODE, "")
        read.setdefault(note, set()).update(_origins(graph, list(node.inputs)))
        said.setdefault(note, set()).update(provenance.mentioned(node))
    return {name for note in said for name in said[note] - read[note]}


def _is_hidden(provenance: Provenance, graph: StaticGraph) -> bool:
    """Whether a tensor of no name, of whose call no node is left, rearranges a parameter.

    An exporter stores what it computed from a parameter beside the parameter itself: a transposed
    copy, say. Numbers that it computed in another way are not told from fixed ones.
    """
    calls = [(node, call) for node in graph.nodes if (call := call_of(node)) is not None]
    results = {name for node in graph.nodes for name in node.output_names}
    known = results.union(provenance.inputs, *([call.result] for _, call in calls))
    trained = {
        _entries(item)
        for name, item in graph.constants.items()
        if name in provenance.targets and item.is_float and item.uniform() is None
    }
    return provenance.signed and any(
        item.view.origin.literal and _entries(item) in trained
        for node, call in calls
        if not known.issuperset(call.tensors)
        for item in (graph.constants.get(name) for name in node.inputs)
        if item is not None and item.view is not None and item.is_float
    )


def _entries(constant: Constant) -> bytes:
    """The numbers of a tensor, in whatever order."""
    return np.sort(constant.array, axis=None).tobytes()


def _computed(graph: StaticGraph) -> frozenset[str]:
    """Tensors that the graph computes from parameters, and these."""
    views = [item.view for item in graph.constants.values() if item.view is not None]
    return graph.absorbed.union(view.origin.name for view in views if view.origin.folded)


def _fold_notes(
    missing: frozenset[str], computed: frozenset[str], graph: Graph, *, as_exported: bool
) -> tuple[Diagnostic, ...]:
    """LC009 where parameters of the file are not what is trained, or said to be so."""
    folded = sorted(name for name, item in graph.parameters.items() if item.folded)
    listed = folded or sorted(computed.intersection(graph.parameters))
    if not missing and not listed:
        return ()
    message, remedy = _COMPUTED, _PLAIN
    if missing:
        message, remedy = _FOLDED, _WHOLE
    is_taken = as_exported and not folded
    return (
        Diagnostic(
            "LC009",
            Level.WARNING if is_taken else Level.ERROR,
            "",
            message + ", ".join(map(repr, (sorted(missing) or listed)[:8])),
            remedy,
        ),
    )


def _check_all_followed(provenance: Provenance, data_path: StaticGraph, graph: Graph) -> None:
    """Every listed parameter that the data path reads is one that the rules follow."""
    read = _origins(data_path, [name for node in data_path.nodes for name in node.inputs])
    lost = sorted(read & provenance.targets - set(graph.parameters))
    if lost:
        reason = f"the trained parameters {', '.join(map(repr, lost[:8]))} are used as constants"
        raise UnsupportedModelError((Refusal("LC003", "", "", reason, "freeze them: buffers"),))


def _number_notes(read: StaticGraph, needed: list[RawNode], graph: Graph) -> tuple[Diagnostic, ...]:
    """LC027 where tensors that might be trained are numbers of a formula.

    read: the graph before layers were recognised. needed: nodes that the output is computed from.
    """
    constants = (read.constants.get(name) for node in needed for name in node.inputs)
    found = {
        item.view.origin.name
        for item in constants
        if item is not None and item.view is not None and item.is_parameter
        if item.is_float and item.array.size == 1
    }
    numbers = sorted(found - set(graph.parameters))
    if not numbers:
        return ()
    message = (
        f"{len(numbers)} stored tensors are taken for fixed numbers of a formula, which nobody "
        f"trains: {', '.join(map(repr, numbers[:8]))}"
    )
    remedy = "if one of them is trained, export with torch.onnx.export(..., dynamo=True)"
    return (Diagnostic("LC027", Level.WARNING, "", message, remedy),)


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
    return (
        Diagnostic(
            "LC020",
            Level.WARNING,
            "",
            message,
            "torch.onnx.export(..., keep_initializers_as_inputs=False)",
        ),
    )


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


def _shared_notes(shared: Sequence[str], graph: Graph) -> tuple[Diagnostic, ...]:
    names = [name for name in shared if name in graph.parameters]
    if not names:
        return ()
    message = (
        f"the exporter stored equal numbers once: {', '.join(map(repr, names[:8]))} are taken for"
        " parameters of their own, which training does not tie to others"
    )
    remedy = "torch.onnx.export(..., dynamo=True, optimize=False)"
    return (Diagnostic("LC024", Level.WARNING, names[0], message, remedy),)
