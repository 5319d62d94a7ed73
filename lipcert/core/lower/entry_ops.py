"""Lower operators that act entry by entry, with broadcasting."""

from lipcert.core.lower.call import Call
from lipcert.core.lower.constant_node import sum_of_sources
from lipcert.core.lower.entrywise import broadcast, combined, expanded, quotient, scaled
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.functions import activated, applied
from lipcert.core.lower.operators import REALS
from lipcert.core.lower.values import Constant, Data, Value
from lipcert.core.program import then
from lipcert.core.token_kinds import Multiply, Scale


def same(call: Call) -> Value:
    """Lower Identity, Dropout at inference, and casts between real types, which change nothing."""
    kind = call.node.op_type
    if kind == "Dropout":
        call.real("ratio", 0.5), call.integer("seed", 0)
        if call.has(2) and call.constant(2).lo.any():
            raise Unsupported("dropout in training mode")
        if call.version >= 12 and call.has(1):
            call.number(1)
    value = call.value(0)
    if kind != "Cast":
        return value
    is_number = isinstance(value, Data) and value.is_real
    if not is_number or call.integer("to", 0) not in REALS:
        from lipcert.core.lower.truth import cast_whole  # noqa: PLC0415  for such values only

        return cast_whole(call)
    call.integer("saturate", 1), call.text("round_mode", "up")
    return value


def check_alike(call: Call) -> None:
    """Refuse inputs of different shapes before operator set 8, when there was no broadcasting."""
    if call.version < 8 and len({(value.shape, value.place) for value in call.values()}) > 1:
        raise Unsupported("its inputs have different shapes")


def total(call: Call) -> Value:
    """Lower Add and Sum: the sum of all inputs."""
    if call.node.op_type == "Sum":
        check_alike(call)
    values = call.values()
    if any(isinstance(item, Data) and not item.is_real for item in values):
        from lipcert.core.lower.truth import other_sum  # noqa: PLC0415  for such values only

        return other_sum(call)
    return combined(call, values, (1,) * len(call))


def difference(call: Call) -> Value:
    """Lower Sub: the first value minus the second."""
    return combined(call, call.values(), (1, -1))


def times(call: Call, value: Data, factor: Constant) -> Data:
    """Multiply the value by a constant, entry by entry."""
    shape, place = broadcast((value, factor))
    full = expanded(call, value, shape, place)
    return call.step(Scale(factor.operand(len(shape))), full, shape=shape, place=place)


def product(call: Call) -> Value:
    """Lower Mul: the product of two values, or a square."""
    first, second = call.value(0), call.value(1)
    if isinstance(first, Constant):
        return times(call, call.data(1), first)
    if isinstance(second, Constant):
        return times(call, first, second)
    if first == second:
        return activated(call, first, "power", 2.0)
    shape, place = broadcast((first, second))
    return call.step(Multiply(), first, second, shape=shape, place=place)


def ratio(call: Call) -> Value:
    """Lower Div: the first value divided by the second."""
    first, second = call.value(0), call.value(1)
    if isinstance(second, Constant):
        inverse = quotient(second)
        acts = then(second.acts, lambda entries: 1.0 / entries)
        sources = sum_of_sources(second)
        factor = Constant(inverse.lo, inverse.hi, sources, second.place, acts=acts)
        if sources:
            from lipcert.core.lower.slopes import of_entries  # noqa: PLC0415  for such alone

            factor = of_entries(factor, second, -(inverse * inverse))
        return times(call, call.data(0), factor)
    if isinstance(first, Constant):
        return times(call, activated(call, second, "reciprocal"), first)
    from lipcert.core.kinds import Divide  # noqa: PLC0415  for such alone

    shape, place = broadcast((first, second))
    return call.step(Divide(), first, second, shape=shape, place=place)


def prelu(call: Call) -> Value:
    """Lower PRelu: the value, multiplied by its slope below 0."""
    from lipcert.core.kinds import PRelu  # noqa: PLC0415  for such alone

    value, slope = call.data(0), call.constant(1)
    shape, place = broadcast((value, slope))
    if shape != value.shape:
        raise Unsupported("its slopes enlarge the value")
    return call.step(PRelu(slope.operand(len(shape))), value, shape=shape, place=place)


def negative(call: Call) -> Value:
    """Lower Neg: the value with the opposite sign."""
    return scaled(call, call.data(), -1.0)


def gelu(call: Call) -> Value:
    """x·Φ(x), or its approximation with tanh."""
    kind = call.text("approximate", "none")
    if kind not in {"none", "tanh"}:
        raise Unsupported("its approximation is not known")
    return applied(call, call.value(0), "gelu" if kind == "none" else "gelu_tanh")
