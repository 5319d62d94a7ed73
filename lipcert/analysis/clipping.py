"""Clipping: put the clips of backpropagation clipping into the graph.

In the graph that a clipped run evaluates, every trained layer is followed by a clip of its upstream
cotangent and preceded by a clip of its input, unless the settings leave the input unclipped. The
ends and radii of every layer become a premise that the core states in words.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from lipcert.analysis.premises import mechanism_of
from lipcert.analysis.release import layer_of
from lipcert.core.kinds import CotangentClip, Embedding, InputClip
from lipcert.core.ledger.layer_clipping import BackpropClipping, ClippedLayer
from lipcert.core.program import Program, Shape, Step
from lipcert.core.reader.records import Model
from lipcert.core.token_kinds import Normalize, Scale, Shift
from lipcert.core.window_kinds import Conv
from lipcert.errors import NoVerdictError, Refusal, UnsupportedModelError
from lipcert.graph.ir import Graph, Node, Padding, is_arrangement, padding_of
from lipcert.settings.settings import Settings
from lipcert.settings.values import check_patterns


def with_clips(graph: Graph, settings: Settings) -> Graph:
    """Return the graph with the clips of the settings.

    A layer is a run of nodes that use trained parameters of one layer (a product and the addition
    of its bias, say), as their names or else the nodes of the file tell, with the padding that a
    convolution reads, and with the normalisation that a scale and a shift belong to. Its input is
    clipped before these, its cotangent after its last node.

    Raises:
        UsageError: if a pattern of the settings fits no layer, or a layer has no radius for its
            cotangent.
        UnsupportedModelError: if a trained convolution reads reflected or repeated borders: the
            published bound β·C is too small there, by 2 for a border of one entry, by more for
            wider ones.
    """
    layers = _layers(graph)
    refusals = tuple(_refusal(layer) for layer in layers if _reads_borders(layer))
    if refusals:
        raise UnsupportedModelError(refusals)
    _check_patterns(graph, layers, settings)
    mechanism = mechanism_of(settings)
    by_channel = isinstance(mechanism, BackpropClipping) and mechanism.is_by_channel
    before: dict[str, InputClip] = {}
    behind: dict[str, CotangentClip] = {}
    for layer in layers:
        radius, end = layer.input_radius(settings), layer.nodes[-1].name
        if radius is not None:
            before[layer.nodes[0].name] = InputClip(radius)
        sums = by_channel and layer.is_convolution
        behind[end] = CotangentClip(settings.cotangent_radius(layer.names), sums)
    renamed: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        if node.name in before:
            reads = (inputs[0], node.given[0])
            nodes.append(_clip(before[node.name], f"{node.name}.clipped_input", reads, node))
            inputs = (nodes[-1].output,)
        nodes.append(replace(node, step=replace(node.step, inputs=inputs)))
        if node.name in behind:
            renamed[node.output] = f"{node.output}.clipped_cotangent"
            reads = (node.output, node.step.shape)
            nodes.append(_clip(behind[node.name], renamed[node.output], reads, node))
    output = renamed.get(graph.output_name, graph.output_name)
    return replace(graph, nodes=tuple(nodes), output_name=output)


@dataclass(frozen=True, slots=True)
class _Layer:
    """Consecutive nodes of one trained layer: padding or normalisation if any, then the rest.

    names: of the layer, and of its trained parameters.
    """

    nodes: tuple[Node, ...]
    names: tuple[str, ...]

    def input_radius(self, settings: Settings) -> float | None:
        """Return the radius to which the layer clips its input; None if it reads row numbers."""
        is_table = isinstance(self.nodes[0].op, Embedding)
        return None if is_table else settings.input_radius(self.names)

    @property
    def is_convolution(self) -> bool:
        """Whether it is a convolution."""
        return any(isinstance(node.op, Conv) for node in self.nodes)


def _layers(graph: Graph) -> list[_Layer]:
    """Return every trained layer."""
    readers = Counter([graph.output_name, *(name for node in graph.nodes for name in node.inputs)])
    producers = {node.output: node for node in graph.nodes}
    keys: dict[str, str] = {}
    runs: dict[str, list[Node]] = {}
    of_file = {node.step.node: node.name for node in graph.nodes}
    for node in graph.nodes:
        name = next(_trained(graph, [node]), None)
        if name is None:
            continue
        key = layer_of(name, of_file[node.step.node])
        source = node.inputs[0]
        read_here_alone = node.inputs == (source,) and readers[source] == 1
        if read_here_alone and source in runs and keys[source] == key:
            run = [*runs.pop(source), node]
        elif read_here_alone and source in producers and _is_padded(node, producers[source]):
            run = [producers[source], node]
        else:
            run = [node]
        keys[node.output] = key
        runs[node.output] = run
    alone = {name for name, count in readers.items() if count == 1}
    untrained = {name: node for name, node in producers.items() if name in alone - keys.keys()}
    return [
        _Layer((*_normalisation(run[0], untrained), *run), (keys[value], *_trained(graph, run)))
        for value, run in runs.items()
    ]


def _normalisation(node: Node, untrained: Mapping[str, Node]) -> tuple[Node, ...]:
    """Return the normalisation whose output a node scales or shifts, with nodes in between.

    untrained: nodes without trained parameters, by their outputs, if these are read once. Between
    the two there may be scales and shifts that are not trained, and entries may be arranged in
    groups; then also before the normalisation.
    """
    if not _is_affine(node):
        return ()
    found: list[Node] = []
    while (before := untrained.get(node.inputs[0])) is not None:
        if isinstance(before.op, Normalize):
            source = untrained.get(before.inputs[0])
            is_grouped = source is not None and is_arrangement(source)
            groups = (source,) if source and is_grouped and any(map(is_arrangement, found)) else ()
            return (*groups, before, *found)
        if not (is_arrangement(before) or _is_affine(before)):
            break
        found.insert(0, before)
        node = before
    return ()


def _is_affine(node: Node) -> bool:
    return isinstance(node.op, Scale | Shift) and "divisor" not in node.operands


def _is_padded(node: Node, before: Node) -> bool:
    is_forward = isinstance(node.op, Conv) and not node.op.transposed
    return is_forward and padding_of(before) is not None


def _trained(graph: Graph, nodes: Iterable[Node]) -> Iterator[str]:
    """Return the trained parameters that nodes use."""
    uses = (use for node in nodes for use in node.uses())
    return (use.parameter for use in uses if graph.parameters[use.parameter].trainable)


def _check_patterns(graph: Graph, layers: Iterable[_Layer], settings: Settings) -> None:
    """Raise UsageError for a pattern that fits no layer, trained or not."""
    names = {name for layer in layers for name in layer.names}
    names.update(graph.parameters, (layer_of(name, "") for name in graph.parameters))
    for key, table in (
        ("input-clips", settings.input_clips),
        ("cotangent-clips", settings.cotangent_clips),
    ):
        check_patterns(key, (pattern for pattern, _ in table), sorted(names), "layer")


def _reads_borders(layer: _Layer) -> bool:
    return layer.is_convolution and padding_of(layer.nodes[0]) is Padding.REPEATED


def _refusal(layer: _Layer) -> Refusal:
    node = layer.nodes[1]
    return Refusal(
        "LC420",
        node.name,
        node.kind,
        "backpropagation clipping has no sound bound for a convolution that reads reflected or "
        "repeated borders",
        "train with zero or circular padding, freeze the layer, or use --mechanism "
        "gradient-clipping",
    )


def _clip(op: InputClip | CotangentClip, name: str, reads: tuple[str, Shape], made: Node) -> Node:
    """Return a clip of the value that it reads, for the file's node that `made` comes from."""
    source, shape = reads
    step = Step(op, (source,), name, shape, made.step.node)
    kind = "input_clip" if isinstance(op, InputClip) else "cotangent_clip"
    return Node(f"{made.name}.{kind}", step, (shape,))


def clipped_layers(
    graph: Graph, settings: Settings, model: Model, program: Program
) -> Iterator[ClippedLayer]:
    """Yield what every layer reads and computes, as values of the file, with its radii, in order.

    A layer may read an arrangement of the value of the file; a clip of that value does the same.
    program: that of the file.

    Raises:
        NoVerdictError: if file and program have no such values.
    """
    named = {*program.inputs, *(name for node in model.nodes for name in node.outputs)}
    known = named & program.shapes.keys()
    makers = {node.output: node for node in graph.nodes}
    places = {node.name: place for place, node in enumerate(graph.nodes)}
    for layer in sorted(_layers(graph), key=lambda layer: places[layer.nodes[0].name]):
        start, end = layer.nodes[0].inputs[0], layer.nodes[-1].output
        while start not in known and start in makers and is_arrangement(makers[start]):
            (start,) = makers[start].inputs
        if not known.issuperset({start, end}):
            raise NoVerdictError(
                f"backpropagation clipping: {next(iter(layer.names))!r} is trained where the file "
                "has no value of its own to clip, as within nn.LSTM, nn.GRU and nn.RNN; freeze it, "
                "or use another mechanism"
            )
        reads, receives = layer.input_radius(settings), settings.cotangent_radius(layer.names)
        yield ClippedLayer(start, end, reads, receives)
