"""Lower operators that pass real numbers on unchanged."""

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.operators import REALS
from lipcert.core.lower.values import Data, Value


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
