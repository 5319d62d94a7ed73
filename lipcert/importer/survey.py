"""Survey: list every reason to refuse a model, so that its author can repair them all at once.

If the inputs of a node are unknown because an earlier node is refused, only its operator is judged.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from lipcert.core.lower.errors import MixingError, ReadsAcrossError, Unsupported
from lipcert.core.lower.lower import Walk
from lipcert.core.lower.operators import JUMPING, JUMPS, UNSUPPORTED
from lipcert.core.lower.values import FIXED, Data
from lipcert.core.reader.records import Model, Node
from lipcert.diagnostics import EXPORT
from lipcert.errors import Refusal
from lipcert.importer.nodes import label, needed_nodes, output_names
from lipcert.importer.operators import refusal_of

_SHAPES: Final = frozenset({"Shape", "Size"})
_STATIC: Final = (
    "export with axis 0 for the batch and fixed sizes for all other axes; in a Resize, give scales,"
    " not sizes"
)
_WELL: Final = "re-export the model; its nodes are not valid ONNX"
_STATED: Final = "export it again, or drop the stated shapes (graph.value_info, graph.output)"
_PLAIN: Final = "write the layer in plain operators, or report the file"
_SMOOTH: Final = "export the network before quantisation or without its discrete head"
_REPAIR: Final = (
    "−∞ may only mask the scores of softmax(scores + mask)·values, where it has to let every query"
    " see a token, such as itself; compute what depends on no input (distances of tokens in T5,"
    " whose log 0 a Where leaves out) before the export, and keep it in a buffer; repair the rest"
)
_FIXED_BATCH: Final = "take sizes from shapes only, or export with a fixed batch size of 1"
ACROSS: Final = "use a layer that treats every example separately"
_ONE_AXIS: Final = "keep one axis for the batch only, as in x.reshape(x.shape[0], ...)"
_ROWS: Final = (
    "choose rows of a constant table (axis 0) by them, compare them with constants, or cast them"
    " to floats first"
)
_ALL: Final = (
    "places of largest entries jump: weigh all by a softmax (experts, routes), or choose by values"
)
_DEPENDS: Final = JUMPING | {"If"}
"""Operators for which it depends on other nodes whether they have a bound."""

_SUPPORTED: Final = "export with supported operators, or opset 17-20"
_NUMBERS: Final = "feed floats, or ids of embeddings as int64"
_LARGE: Final = "a tensor has more than"
_SMALLER: Final = "import a smaller network, or one with smaller inputs"
_CODES: Final = (
    (JUMPS, "LC005", _SMOOTH),
    ("equally many examples", "LC010", "export all inputs with one batch axis, axis 0"),
    ("it jumps at lambd", "LC005", "write soft shrinkage with Relu"),
    ("operator set", "LC003", _SUPPORTED),
    ("it rounds to whole numbers", "LC005", _SMOOTH),
    ("is a result without a bound", "LC005", _ALL),
    ("it computes with whole numbers", "LC006", _ROWS),
    ("it selects by numbers", "LC006", _ROWS),
    ("a constant is not", "LC014", _REPAIR),
    ("inputs and attributes do not fit", "LC016", _WELL),
    ("does not hold numbers", "LC006", _NUMBERS),
    (UNSUPPORTED, "LC003", _SUPPORTED),
    ("is of type uint64", "LC006", _NUMBERS),
    ("is not of fixed shape behind", "LC008", _STATIC),
    ("it drops the batch axis", "LC007", _ONE_AXIS),
    ("carry the batch in different ways", "LC008", _STATIC),
    ("along the batch axis", "LC007", _ONE_AXIS),
    ("epsilon is negative", "LC016", _WELL),
    ("the file states", "LC016", _STATED),
    ("training mode", "LC011", f"export it in evaluation mode: {EXPORT}"),
    ("automatic padding", "LC003", "export with explicit pads"),
    ("the shape does not fit", "LC007", _ONE_AXIS),
    ("a reshape changes the number", "LC007", _ONE_AXIS),
    ("a reshape spreads the batch", "LC007", _ONE_AXIS),
    (FIXED, "LC008", _STATIC),
    ("the size of the batch", "LC008", _FIXED_BATCH),
    ("the output does not depend on the input", "LC008", "choose an output that does"),
)
"""words in the core's message → code and remedy"""


def distinct(refusals: Iterable[Refusal]) -> tuple[Refusal, ...]:
    """Remove repeated refusals: keep one for each code, node and, without a node, reason."""
    kept: dict[tuple[str, str, str], Refusal] = {}
    for item in refusals:
        kept.setdefault((item.code, item.node, "" if item.node else item.reason), item)
    return tuple(kept.values())


def operator_refusals(model: Model, outputs: Sequence[str]) -> Iterator[Refusal]:
    """Yield refusals of operators without a bound between any input and these outputs."""
    data = {item.name for item in model.inputs}
    for node in needed_nodes(model, *outputs):
        if node.op_type in _SHAPES or data.isdisjoint(node.inputs):
            continue
        data.update(output_names(node))
        depends = node.op_type in _DEPENDS and not node.domain
        if not depends and (refusal := refusal_of(node)) is not None:
            yield refusal


def refused(error: Unsupported, *, on_data: bool = True) -> Refusal:
    """Return a refusal of the core with code and remedy. on_data: about values, not sizes."""
    found = error.node if isinstance(error.node, Node) else None
    node, op = ("", "") if found is None else (label(found), found.op_type)
    is_general = on_data or error.reason == UNSUPPORTED
    better = refusal_of(found) if found is not None and is_general else None
    if better is not None:
        return better
    if isinstance(error, ReadsAcrossError):
        return Refusal("LC007", node, op, error.reason, ACROSS)
    if isinstance(error, MixingError):
        return Refusal("LC007", node, op, error.reason, _ONE_AXIS)
    words = ((code, remedy) for text, code, remedy in _CODES if text in error.reason)
    code, remedy = next(words, ("LC028", _PLAIN))
    if _LARGE in error.reason:
        code, remedy = ("LC002" if on_data else "LC016"), _SMALLER
    return Refusal(code, node, op, error.reason, remedy)


def node_refusals(model: Model, *outputs: str, batched: bool) -> Iterator[Refusal]:
    """Yield refusals of all nodes that cannot be read, as far as their inputs are known."""
    try:
        walk = Walk.of(model, *outputs, batched=batched)
    except Unsupported as error:
        yield refused(error)
        return
    lost: set[str] = set()
    for position, node in walk.nodes:
        if lost.isdisjoint(filter(None, node.inputs)):
            try:
                walk.node(node, position)
            except Unsupported as error:
                given = (walk.values.get(name) for name in node.inputs)
                on_data = error.node is not node or any(isinstance(item, Data) for item in given)
                yield refused(error, on_data=on_data)
            else:
                continue
        lost.update(filter(None, node.outputs))
    for output in outputs:
        if output not in lost:
            try:
                walk.known(output)
            except Unsupported as error:
                yield refused(error)
