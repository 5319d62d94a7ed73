"""Assemble: turn a checked model into a graph, with notes on what its user must know.

    Model → provenance → one initializer for each parameter → Program → Graph

The core alone interprets operators; this module decides which tensors training changes.
Invariant: the same model gives the same graph, in every process.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from typing import Final, TypeAlias

from lipcert.core.coverage import tensors
from lipcert.core.kinds import Centre, Concat, DivideByNorm, MaskedMean, Sort
from lipcert.core.lower.errors import MixingError, Unsupported
from lipcert.core.lower.lower import lower
from lipcert.core.program import Activation, Move, Op, Program
from lipcert.core.reader.records import Input, Model, Node
from lipcert.core.token_kinds import Attention, Normalize, Scale, Shift
from lipcert.diagnostics import EXPORT, Diagnostic, Level
from lipcert.errors import Refusal, UnsupportedModelError, UsageError
from lipcert.graph.ir import BatchProof, BatchStatus, Graph
from lipcert.importer.bindings import separate_shared, with_bindings, with_stored
from lipcert.importer.computed import with_computed
from lipcert.importer.graph_of import graph_of
from lipcert.importer.metadata import (
    Provenance,
    eval_layers,
    eval_notes,
    is_anonymous,
    read_provenance,
    training_refusals,
)
from lipcert.importer.model import (
    ImportedModel,
    MacroLayer,
    Reading,
    Verification,
)
from lipcert.importer.nodes import Branches, NotedNode, label, needed_nodes, needed_values
from lipcert.importer.origins import RECURRENT, computed_by_tools, unseen
from lipcert.importer.shown import shown_graph
from lipcert.importer.survey import (
    ACROSS,
    distinct,
    node_refusals,
    number_refusals,
    operator_refusals,
    refused,
)
from lipcert.importer.trained import (
    Marks,
    Trained,
    dequantised,
    formula_numbers,
    noted_nodes,
    scales_of_quantised,
    trained_of,
)
from lipcert.settings.values import matches, nearest

Verify: TypeAlias = Callable[[Reading, Program], Verification]
_COMPUTED: Final = "the exporter or the graph computes these tensors from trained parameters: "
_FOLDED: Final = "the exporter computed tensors, maybe all, from these, which the file lacks: "
_UNSEEN: Final = (
    "a tensor, or a call that is left out, was computed from these trained parameters: "
)
_NAMED: Final = "by their names, a tool may have computed these from any trained parameters: "
_FREEZING: Final = "or --freeze them if training does not change what they come from"
_WHOLE: Final = f"{EXPORT}, or use --as-exported if training updates exactly these tensors"
_PLAIN: Final = f"train plain weights (torch's remove_parametrizations) and use {_WHOLE}"
_WHICH: Final = (
    "choose one by its name (--output NAME), or give each that has a loss its own"
    " (--loss NAME=cross-entropy,OTHER=mse)"
)
_FREEZE: Final = "freeze them: buffers, or numbers of the code (x.pow(3.0))"
_SYMBOLIC: Final = f"export with a symbolic batch axis: {EXPORT}"
_PROVED: Final = "every operator keeps the examples apart, for a batch of any size"
_PROVED_FIXED: Final = "every operator keeps the examples apart, in a batch of the file's size"
_WEIGHED: Final = frozenset(
    {"Conv", "ConvTranspose", "GRU", "Gemm", "LSTM", "Loop", "MatMul", "RNN"}
)
"""Operators with weights: a network that ends behind one includes its weights."""
_CHOOSING: Final = frozenset(
    {"ArgMax", "ArgMin", "Binarizer", "Hardmax", "LinearClassifier", "NonMaxSuppression", "TopK"}
    | {"SVMClassifier", "TreeEnsembleClassifier", "ZipMap"}
)
"""Operators whose first output (the second for TopK) jumps, or names what was read."""
_RENAMING: Final = frozenset(
    {"ArrayFeatureExtractor", "Cast", "Flatten", "Gather", "Identity", "LabelEncoder", "Reshape"}
    | {"Squeeze"}
)
"""Operators that move or rename what another operator has chosen."""
_SILENT: Final = frozenset({"Cast", "Dropout", "Identity"})
"""Operators that are left out of the list of nodes that spell a layer."""


def assemble(
    held: Model,
    path: str,
    outputs: Sequence[str],
    verify: Verify,
    freeze: Sequence[str],
    *,
    as_exported: bool,
) -> ImportedModel:
    """Turn the model in a file into a graph. The other arguments are those of `load_model`.

    verify: compares the reading of the file, and the program of the graph, with onnxruntime.

    Raises:
        UsageError: if the model lacks a requested output.
        UnsupportedModelError: with all reasons for which the model is refused.
    """
    stored = with_stored(held)
    branches = Branches.of(stored)
    file = replace(stored, nodes=tuple(branches.followed(stored.nodes)))
    provenance = read_provenance(stored)
    targets, sources = _outputs_and_inputs(file, outputs)
    source = sources[0]  # the batch is that of all inputs
    separated = separate_shared(stored, provenance)
    found = with_computed(separated.model, _trainable(separated.model, provenance))
    bound = with_bindings(found.model, provenance, found.views)
    same = bound.model is stored
    found = replace(found, model=bound.model if same else branches.decided(bound.model))
    program = _program(file, found.model, source, targets)
    _check_apart(found.model, program, source)
    needed = needed_nodes(file, *targets)
    missing = provenance.missing(bound.names, needed, targets)
    own = {name for node in stored.nodes for name in node.outputs}
    known = {*found.names, *formula_numbers(program, found.model, provenance)}
    free = {name: item for name, item in tensors(found.model).items() if name not in known}
    readers = tuple(_readers(found.model, needed))
    suspects = computed_by_tools(provenance, free, readers)
    frozen = {name for name in suspects if matches(name, freeze)}
    provenance = replace(provenance, frozen=provenance.frozen | frozen)
    marks = Marks(
        provenance=provenance,
        missing=missing,
        nodes=tuple(noted_nodes(found.model, program)),
        hidden=any(
            provenance.is_folded(node, missing) for node in needed if node.outputs[0] not in own
        ),
        unseen=unseen(provenance, free, readers),
        suspects=suspects - frozen,
        as_exported=as_exported,
    )
    trained = trained_of(program, found, marks)
    if trained.lost:
        listed = ", ".join(map(repr, trained.lost[:8]))
        reason = f"the trained parameters {listed} enter as plain numbers (an exponent, a limit)"
        raise UnsupportedModelError((Refusal("LC003", "", "", reason, _FREEZE),))
    graph = graph_of(program, found.model, trained.parameters, as_exported=as_exported)
    shown: Graph | str = ""
    if graph.computed and not bound.names:  # whose numbers other nodes may read under other names
        shown = shown_graph(found.whole, program, graph.parameters, targets)
    graph = replace(
        graph,
        eval_layers=eval_layers(file, *targets),
        fixed=trained.fixed,
        shown=shown,
    )
    diagnostics = (
        *_batch_notes(program, source),
        *_output_notes(stored, targets),
        *_fold_notes(marks, found.absorbed | found.names, graph),
        *_name_notes(stored, provenance, separated.names, graph),
        *eval_notes(graph.eval_layers),
        *_number_notes(trained, graph, found.model, program),
    )
    trainable = [name for name, item in graph.parameters.items() if item.trainable]
    scattered = (bound.scattered | separated.scattered).intersection(trainable)
    read = program if same else _program(file, stored, source, targets)
    reading = Reading(stored, read, targets, branches.taken)
    return ImportedModel(
        graph=graph,
        path=path,
        file=held,
        reading=reading,
        batch=_batch_proof(program, source),
        verification=verify(reading, program),
        diagnostics=diagnostics,
        macros=tuple(_macros(found.model, program)),
        scattered=scattered,
        signed=provenance.signed,
    )


def _readers(model: Model, needed: Sequence[Node]) -> Iterator[NotedNode]:
    """Yield the nodes of the file, with the tensors that they read in the model."""
    read = {node.outputs[0]: frozenset(node.inputs) for node in model.nodes}
    for node in needed:
        yield NotedNode(node, read.get(node.outputs[0], frozenset()))


def _outputs_and_inputs(file: Model, outputs: Sequence[str]) -> tuple[tuple[str, ...], list[Input]]:
    """Return the outputs, and the inputs they depend on, or raise every reason for a refusal."""
    targets, is_chosen = file.outputs, False
    sources, found = list[Input](), list[Refusal]()
    try:
        targets, is_chosen = _chosen_outputs(file, outputs), True
        sources = _inputs(file, targets)
    except UnsupportedModelError as error:
        found += error.refusals
    found += number_refusals(file, needed_values(file, *targets))
    if found:
        each = [targets] if is_chosen else [(output,) for output in targets]
        against = [list(operator_refusals(file, names)) for names in each]
        if all(against):  # if one output has no reason, those of the others do not count
            found += (item for items in against for item in items)
        refusals = [*training_refusals(file), *found, *_earlier_value(file, targets)]
        raise UnsupportedModelError(distinct(refusals))
    return targets, sources


def _earlier_value(file: Model, outputs: Sequence[str]) -> Iterator[Refusal]:
    """Suggest the value from which a last part that chooses, such as `ArgMax`, is computed."""
    chooses = False
    for node in reversed(needed_nodes(file, *outputs)):
        if node.op_type in _WEIGHED:
            return
        chooses |= node.op_type in _CHOOSING
        for name in filter(file.computed.__contains__, node.inputs if chooses else ()):
            with suppress(Unsupported):
                lower(file, name)
                reason = f"the network before these nodes, which ends in {name!r}, can be read"
                yield Refusal("LC012", "", "", reason, f"--output {name}")
                return


def _program(file: Model, model: Model, source: Input, outputs: Sequence[str]) -> Program:
    """Return the program of a model, or raise every reason why there is none.

    The model may have been rewritten; the file was not.
    """
    found = list(training_refusals(file))
    error = None
    if not found:
        try:
            return lower(model, *outputs)
        except Unsupported as refusal:
            error = refusal
    batched = (source.dims or ("",))[0] != 1 or isinstance(error, MixingError)
    found += node_refusals(model, *outputs, batched=batched)
    found += operator_refusals(file, outputs)
    if error is not None and (error.node is None or not found):
        found.append(refused(error))
    raise UnsupportedModelError(distinct([*found, *_earlier_value(file, outputs)]))


def _check_apart(model: Model, program: Program, source: Input) -> None:
    """Refuse sums and sorts over a batch axis of size 1, whose size in training is unknown."""
    if program.place is not None or (source.dims or ("",))[0] != 1:
        return
    for step in program.steps:
        axes = getattr(step.op, "axes", (getattr(step.op, "axis", None),))
        shape = program.shapes[step.inputs[0]]
        if not isinstance(step.op, Concat) and 0 in axes and shape[0] == 1 < math.prod(shape):
            node = model.nodes[step.node]
            reason = "it reads across axis 0, which holds a batch of 1"
            refusal = Refusal("LC007", label(node), node.op_type, reason, ACROSS)
            raise UnsupportedModelError((refusal,))


def _trainable(model: Model, provenance: Provenance) -> frozenset[str]:
    """Return the initializers that training may change, without scales of quantised numbers."""
    scales = scales_of_quantised(model)
    return frozenset(
        name
        for name, tensor in model.initializers.items()
        if tensor.is_float
        and tensor.size
        and (name not in scales or name in provenance.targets)
        and not provenance.is_statistic(name)
        and (provenance.sources(name) or not provenance.is_literal(name, tensor.size))
    )


def _batch_proof(program: Program, source: Input) -> BatchProof:
    if program.place is None:
        return BatchProof(BatchStatus.PER_EXAMPLE, 0, "the shapes in the file are fixed")
    first = (source.dims or ("",))[0]
    is_any = isinstance(first, str) or first == 1
    return BatchProof(BatchStatus.PROVED, 0, _PROVED if is_any else _PROVED_FIXED)


def _warning(code: str, message: str, remedy: str, node: str = "") -> Diagnostic:
    return Diagnostic(code, Level.WARNING, node, message, remedy)


def _batch_notes(program: Program, source: Input) -> Iterator[Diagnostic]:
    """Yield LC021 if the file holds a single example, LC022 if it fixes the batch size."""
    first = (source.dims or ("",))[0]
    if program.place is None:
        message = (
            f"the file holds one example of shape {program.shapes[program.input]} at a time; it is"
            " assumed that the network is applied to each example separately"
        )
        yield _warning("LC021", message, _SYMBOLIC)
    elif not isinstance(first, str) and first != 1:
        message = (
            f"axis 0 of the input, of fixed size {first}, is taken for the batch axis; the same"
            " size in other shapes is taken for the batch size too"
        )
        yield _warning("LC022", message, _SYMBOLIC)


def _macros(model: Model, program: Program) -> Iterator[MacroLayer]:
    """Yield the layers that several nodes of the file spell out."""
    makers = {name: at for at, node in enumerate(model.nodes) for name in node.outputs if name}
    for step in program.steps:
        kind, last = _kind(step.op), model.nodes[step.node]
        parts: set[int] = set()
        open_names = list(last.inputs)
        while kind and open_names:
            at = makers.get(open_names.pop())
            if at is not None and at not in parts and program.covered[at] == "part":
                parts.add(at)
                open_names += model.nodes[at].inputs
        names = [model.nodes[at] for at in sorted(parts)]
        spelled = [label(node) for node in names if node.op_type not in _SILENT]
        if spelled:
            yield MacroLayer(kind, label(last), (*spelled, label(last)))


def _kind(op: Op) -> str:
    """Return the name of a layer that exporters spell out; "" for others."""
    match op:
        case Activation("gelu" | "gelu_tanh"):
            return "Gelu"
        case Activation("silu" | "quick_gelu"):
            return "Swish"
        case Activation("mish"):
            return "Mish"
        case Activation("hard_swish"):
            return "HardSwish"
        case Attention():
            return "ScaledAttention"
        case Normalize(centred=centred):
            return "LayerNormalization" if centred else "RMSNormalization"
        case Centre() | DivideByNorm() | MaskedMean():
            return type(op).__name__
        case Sort():
            return "MaxMin"
    return ""


def _name_hint(asked: str, outputs: Sequence[str], listed: str) -> str:
    """Suggest what an unknown output name may mean, such as the file to write (-o)."""
    if PurePath(asked).suffix.lstrip(".").isalpha():
        return f"did you mean -o {asked}, the file to write? The outputs of the model are: {listed}"
    return nearest(asked, outputs) or f"known: {listed} (-o names the file to write)"


def _chosen_outputs(model: Model, asked: Sequence[str]) -> tuple[str, ...]:
    """Return the requested outputs, or else the one that no other output is computed from.

    Outputs that choose (class labels) or copy are ignored if there are others. A ZipMap, which
    names the columns of scores, is replaced by the tensor of the scores.
    """
    outputs = model.outputs
    listed = ", ".join(repr(name) for name in outputs[:8])
    for output in asked:
        if output not in model.computed:
            raise UsageError(
                f"output: the model has no output {output!r}; {_name_hint(output, outputs, listed)}"
            )
    if asked:
        return tuple(asked)
    several = _scores(model) or outputs
    read = {name for node in needed_nodes(model, *several) for name in node.inputs}
    final = [name for name in several if name not in read]  # no other one is computed from it
    if len(final) == 1:
        return (final[0],)
    reason = f"the model has {len(outputs)} outputs: {listed}"
    raise UnsupportedModelError((Refusal("LC012", "", "", reason, _WHICH),))


def _scores(model: Model) -> list[str]:
    """Return the outputs that do not choose, copy an input or hold constants.

    If there are none, return the tensors whose columns a ZipMap names, if there are other outputs.
    """
    makers = {name: node for node in model.nodes for name in node.outputs}
    data = {item.name for item in model.inputs}
    scores, named = list[str](), list[str]()
    for output in model.outputs:
        name = output
        while name in makers and makers[name].op_type in _RENAMING:
            name = next((item for item in makers[name].inputs if item in makers), "")
        node = makers.get(name)
        if node is None or data.isdisjoint(needed_values(model, output)):
            continue
        if node.op_type == "ZipMap":
            named.append(node.inputs[0])
        elif node.op_type not in _CHOOSING or (node.op_type == "TopK") != node.outputs.index(name):
            scores.append(output)
    return scores or named[: len(model.outputs) - 1]


def _output_notes(model: Model, targets: Sequence[str]) -> Iterator[Diagnostic]:
    """Yield LC012 if the file has further outputs: the loss is assumed not to read them."""
    others = [name for name in model.outputs if name not in targets]
    if not others:
        return
    read, listed = (", ".join(map(repr, names[:8])) for names in (targets, others))
    what = f"output {read}" if len(targets) == 1 else f"outputs {read}"
    message = f"the loss is taken to read the {what} alone, not {listed}"
    yield _warning("LC012", message, _WHICH)


def _inputs(model: Model, outputs: Sequence[str]) -> list[Input]:
    needed = needed_values(model, *outputs)
    inputs = [item for item in model.inputs if item.name in needed]
    if inputs:
        return inputs
    listed = ", ".join(map(repr, outputs))
    refusal = Refusal("LC008", "", "", f"the output {listed} does not depend on any input")
    raise UnsupportedModelError((refusal,))


def _fold_notes(marks: Marks, computed: frozenset[str], graph: Graph) -> Iterator[Diagnostic]:
    """Yield LC009 if parameters of the file are not those that are trained, or may not be."""
    missing, unseen = marks.missing, marks.unseen
    trained = {name: item.folded for name, item in graph.parameters.items() if item.trainable}
    folded = sorted(name for name, is_folded in trained.items() if is_folded)
    listed = folded or (sorted(computed & trained.keys()) if marks.as_exported else [])
    if not missing and not listed:
        return
    message, remedy = (_UNSEEN, _WHOLE) if unseen.intersection(folded) else (_COMPUTED, _PLAIN)
    if marks.suspects:
        message, remedy, listed = _NAMED, f"{_WHOLE}, {_FREEZING}", sorted(marks.suspects)
    if missing:
        message, remedy = _FOLDED, _WHOLE
    level = Level.WARNING if marks.as_exported and not folded else Level.ERROR
    message += ", ".join(map(repr, (sorted(missing) or listed)[:8]))
    yield Diagnostic("LC009", level, "", message, remedy)


def _without_biases(model: Model, program: Program) -> Iterator[str]:
    """Yield the nodes of linear layers without a stored bias, and of normalisations without factor
    and shift.

    Recurrent layers hold all of their biases in one tensor, which is never left out.
    """
    after = dict[str, str]()
    for step, node in ((item, model.nodes[item.node]) for item in reversed(program.steps)):
        tail = after.get(step.output, "")
        own = {Shift: "shift", Move: tail, Scale: tail and "factor"}.get(type(step.op), "")
        after |= {step.inputs[0]: own} if own else {}
        whole = "factor" if isinstance(step.op, Normalize) else "shift"
        may_lack = whole == "factor" or getattr(step.op, "bias", step.op) is None
        if may_lack and tail != whole and node.op_type not in RECURRENT:
            yield label(node)


def _number_notes(
    trained: Trained, graph: Graph, model: Model, program: Program
) -> Iterator[Diagnostic]:
    """Yield LC027 if tensors that may be trained are taken for fixed numbers, or quantised."""
    nodes = tuple(dequantised(model))
    scales = {name for node in nodes for name in node.inputs[1:2]}
    numbers = [name for name in trained.numbers if name not in {*graph.parameters, *scales}]
    quantised = [name for node in nodes for name in node.inputs[:1] if name in model.initializers]
    if quantised:
        message = (
            f"{len(quantised)} quantised tensors and their scales are taken for fixed numbers, "
            f"which are not trained: {', '.join(map(repr, quantised[:8]))}"
        )
        remedy = "if one of them is trained, export the network before quantisation"
        yield _warning("LC027", message, remedy)
    bare = list(_without_biases(model, program)) if model.producer.startswith("tf2onnx") else []
    if bare:
        message = (
            "tf2onnx leaves out biases of zeros and factors of 1, even if they are trained; there "
            f"are none, or not both, behind {', '.join(map(repr, bare[:8]))}"
        )
        yield _warning("LC027", message, "give them other numbers before the export")
    if numbers:
        message = (
            f"{len(numbers)} stored tensors are taken for fixed numbers of a formula, which are not"
            f" trained: {', '.join(map(repr, numbers[:8]))}"
        )
        yield _warning("LC027", message, f"if one of them is trained, export with {EXPORT}")


def _name_notes(
    model: Model, provenance: Provenance, shared: Collection[str], graph: Graph
) -> Iterator[Diagnostic]:
    """Yield LC020 (parameters that are inputs), LC023 (made-up names), LC024 (stored once)."""
    inputs = [name for name in model.overridable if name in graph.parameters]
    anonymous = [name for name in graph.parameters if is_anonymous(name)]
    names = [name for name in shared if name in graph.parameters]
    if inputs:
        message = (
            f"{len(inputs)} parameters are also graph inputs (such as {inputs[0]!r}) and can be"
            " overridden at run time; the values in the file are used"
        )
        remedy = f"export without keep_initializers_as_inputs: {EXPORT}"
        yield _warning("LC020", message, remedy)
    if anonymous and not provenance.signed:
        message = (
            f"{len(anonymous)} tensors have made-up names (such as {anonymous[0]!r}): batch"
            " normalization may have been folded into them"
        )
        yield _warning("LC023", message, EXPORT, anonymous[0])
    if names:
        message = (
            f"the exporter stored equal numbers once: {', '.join(map(repr, names[:8]))} are taken"
            " for parameters of their own, which training does not tie to others"
        )
        yield _warning("LC024", message, EXPORT, names[0])
