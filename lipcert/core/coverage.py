"""Coverage: find the tensors and layers of a model that the steps of its program account for."""

from collections.abc import Iterable

from lipcert.core.certificate import ScopeClaim
from lipcert.core.ledger import DROPOUT, MODAL_OPERATORS, EvalLayer
from lipcert.core.program import Activation, Op, Program, Step, operands
from lipcert.core.reader.records import Model, Tensor, shown, with_nested
from lipcert.core.rules import VERSION


def rule_of(op: Op) -> str:
    """Return the versioned name of a step's rule: its kind, and the function of an activation."""
    kind = type(op).__name__.lower()
    return f"{kind}.{op.name}/{VERSION}" if isinstance(op, Activation) else f"{kind}/{VERSION}"


def is_relu(step: Step) -> bool:
    """Whether the step lies between 0 and max(x, 0), entry by entry: a ReLU, perhaps limited."""
    match step.op:
        case Activation("relu"):
            return True
        case Activation("clip", (low, _)):
            return low == 0.0
    return False


def tensors_read(steps: Iterable[Step]) -> frozenset[str]:
    """Return the initializers that steps use as operands."""
    return frozenset(
        name for step in steps for operand in operands(step.op) for name in operand.sources
    )


def tensors(model: Model) -> dict[str, Tensor]:
    """Return the initializers of a model, and the constants in its nodes, by name."""
    found = dict(model.initializers)
    for node in with_nested(model.nodes):
        value = node.attributes.get("value")
        if node.op_type == "Constant" and value is not None and isinstance(value.value, Tensor):
            found[node.outputs[0]] = value.value
    return found


def unspoken_tensors(scope: ScopeClaim, model: Model, program: Program) -> dict[str, str]:
    """Return the trained tensors that no rule covers, with the reasons.

    Proof: a rule covers a tensor that changes only if it is an operand. A tensor that enters as a
    plain number has no gradient bound (`Program.untracked`), and bounds do not hold for other
    values of it; no rule covers integers, or a tensor read in any other way.
    """
    known = tensors(model)
    read = {
        name
        for node, role in zip(model.nodes, program.covered, strict=True)
        if role != "unused"
        for name in node.inputs
    }
    spoken = tensors_read(program.steps) | program.untracked
    found: dict[str, str] = {}
    for name in scope.trained:
        if name not in known:
            found[name] = f"the trained tensor {shown(name)} is not in the model"
        elif known[name].values().dtype.kind != "f":
            found[name] = f"the trained tensor {shown(name)} does not hold real numbers"
        elif name in read - spoken or (
            scope.kind == "constraint-set" and name in program.untracked
        ):
            found[name] = f"no rule covers the trained tensor {shown(name)} as it is used"
    return found


def frozen_tensors(program: Program, trained: frozenset[str]) -> tuple[str, ...]:
    """Return, sorted, the tensors that the output depends on and training does not change."""
    return tuple(sorted((tensors_read(program.steps) | program.untracked) - trained))


def drops(model: Model, program: Program) -> bool:
    """Whether a node that the output depends on drops entries at random in train mode."""
    return any(x.kind == DROPOUT for x in eval_layers(model, program, clipped=False))


def eval_layers(model: Model, program: Program, *, clipped: bool) -> tuple[EvalLayer, ...]:
    """Return the nodes that the output depends on and that have to stay in eval mode.

    clipped: whether training clips the gradient of every example. It may then drop entries, as long
    as only the clip bounds the gradient (`claims.group_bounds`).
    """
    return tuple(
        EvalLayer(node.op_type, node.name or node.outputs[0])
        for outer, role in zip(model.nodes, program.covered, strict=True)
        if role != "unused"
        for node in with_nested([outer])
        if not node.domain
        and node.op_type in MODAL_OPERATORS
        and not (clipped and node.op_type == DROPOUT)
    )
