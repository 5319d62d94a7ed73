"""Op: the contract every operation fulfils, as a handful of short answers.

Shapes are per example: the batch axis never appears, except in `evaluate`, which works on
[examples, *shape] arrays. A missing answer is a type error, never silence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from lipcert.facts import Bound, CotangentFacts, Shape, ValueFacts, product_of
from lipcert.links import Link
from lipcert.operand import Operand
from lipcert.scope import Scope
from lipcert.upper import FloatArray


class Op(ABC):
    """One operation of the graph; subclasses are final frozen dataclasses of its attributes."""

    __slots__ = ()

    @property
    @abstractmethod
    def kind(self) -> str:
        """Name for reports, in the spelling of ONNX where ONNX has one ("Conv")."""

    @property
    @abstractmethod
    def family(self) -> str:
        """First part of the rule ids of this op ("conv")."""

    @abstractmethod
    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Shape of the output for inputs of these shapes; ValueError where they do not fit."""

    @abstractmethod
    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """What is known of the output; never derived from a Lipschitz constant alone."""

    @abstractmethod
    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Bound of sup ‖∂output/∂input_index‖₂ over the values described by `inputs`."""

    @abstractmethod
    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The op in float64 numpy on [examples, *shape] arrays: the meaning of the rules."""

    def operands(self) -> Mapping[str, Operand]:
        """The constant tensors of this op by slot ("weight", "bias", "scale", "slope")."""
        return {}

    def param_lipschitz(self, inputs: Sequence[ValueFacts], scope: Scope) -> Mapping[str, Bound]:
        """For each slot of `operands`: bound of sup ‖∂output/∂operand‖₂ over `inputs`."""
        if self.operands():
            raise TypeError(f"{type(self).__name__} has operands but no parameter rule")
        del inputs, scope
        return {}

    def param_grad_norms(
        self, inputs: Sequence[ValueFacts], cotangent: CotangentFacts, scope: Scope
    ) -> Mapping[str, Bound]:
        """For each slot of `operands`: bound of ‖∂loss/∂operand‖ through this use of it.

        The default is the chain rule L_θ·l; ops that can use richer facts override it.
        """
        slopes = self.param_lipschitz(inputs, scope)
        return {
            slot: product_of(slope.rule, slope, cotangent.norm) for slot, slope in slopes.items()
        }

    def unclipped(self) -> Op:
        """The op whose cotangents are true derivatives: itself, unless it clips them."""
        return self

    def operator_norm(self, scope: Scope) -> Bound | None:
        """Norm of the op's linear part where it has one, for the report."""
        del scope
        return None

    def link(self, inputs: Sequence[ValueFacts], scope: Scope) -> Link | None:
        """The Jacobian of an op with one input, where it is a known matrix or always diagonal."""
        del inputs, scope
        return None

    def input_cotangent(
        self,
        index: int,
        cotangent: CotangentFacts,
        inputs: Sequence[ValueFacts],
        scope: Scope,
    ) -> CotangentFacts:
        """Cotangent at input `index` for a given cotangent at the output.

        The default is the chain rule l·L; ops that can use or keep richer facts override it.
        """
        return cotangent.through(self.input_lipschitz(index, inputs, scope))
