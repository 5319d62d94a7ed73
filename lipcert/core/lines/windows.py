"""fact/window: what convolutions and ReLUs in a row say together, where no entry is negative."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lipcert.core.arithmetic import sqrt_up
from lipcert.core.budget import spend
from lipcert.core.codec import Bound
from lipcert.core.coverage import tensors_read
from lipcert.core.interval import Array, exact, up
from lipcert.core.line import NotProved
from lipcert.core.lines.gains import image_of_zero
from lipcert.core.lines.proof import Proof
from lipcert.core.lines.steps import FactLine
from lipcert.core.norms.claim import NormWitness
from lipcert.core.norms.convolution import Kernel, kernel_of
from lipcert.core.norms.joint_kernels import Layout
from lipcert.core.program import Activation, IndexArray, Step
from lipcert.core.rules.facts import Fact

RELU = Activation("relu")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WindowFact(FactLine):
    """Bounds the last of several ReLUs that follow convolutions in a row, where the value that the
    first convolution reads has no negative entry.

    values: the names of all values computed before the last ReLU. ties, added and levels: for each
    layer, the magnitudes of Θ, M and τ of `norms.joint_kernels`. scales: s, one for each value.
    None of these numbers is trusted. gain: ‖shift·I + SHS‖, where H has γ/τ and the identity on its
    diagonal; it is proved by method, twists and counts, as in lines `norm/…`.
    Hypotheses (checked): each step reads what the step before it computes, and nothing else; no
    tensor of these steps may change; from one ReLU to the next, the steps are one plain
    convolution, as `kernel_of` reads them.
    Proof: SHS has no eigenvalue above gain − shift: v'Hv is at most that times Σ ‖v_k/s_k‖².
    """

    values: tuple[str, ...]
    ties: tuple[tuple[Bound, ...], ...]
    added: tuple[tuple[Bound, ...], ...]
    levels: tuple[Bound, ...]
    scales: tuple[Bound, ...]
    shift: Bound
    gain: Bound
    method: str
    twists: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    def evaluate(self, proof: Proof) -> Fact:
        """Return the bound that follows from the norms of the values in the window."""
        spend()
        layers = layers_of(proof, self.values, self.value)
        names = layers[0][0].inputs[0], *(layer[-1].output for layer in layers)
        if not (proof.facts[names[0]].box.lo >= 0.0).all():
            raise NotProved("an entry below may be negative")
        try:
            kernel, rest = self.joint(proof, layers)
        except (OverflowError, ValueError) as reason:
            raise NotProved(f"its numbers do not fit: {reason}") from None
        witness = NormWitness(self.method, self.twists, self.counts)
        if not kernel.norm_at_most(self.gain, witness, proof.engine.norms):
            raise NotProved("its numbers prove nothing")
        norms = [proof.facts[name].norm for name in names]
        if not all(map(math.isfinite, norms)):
            raise NotProved("a value is not bounded")
        above = max(Fraction(self.gain) - Fraction(self.shift), Fraction(0))
        for norm, scale in zip(norms, self.scales, strict=True):
            rest += above * (Fraction(norm) / Fraction(scale)) ** 2
        return Fact.of(layers[-1][-1].shape, sqrt_up(rest))

    def joint(self, proof: Proof, layers: Sequence[Sequence[Step]]) -> tuple[Kernel, Fraction]:
        """Return shift·I + SHS, and Σ γτ over all entries.

        Raises ValueError if the numbers do not fit, OverflowError if one is too large.
        """
        kernels = kernels_of(proof, layers)
        layout = Layout.of([kernel.frame for kernel in kernels])
        if not min((*self.levels, *self.scales), default=0.0) > 0.0:
            raise ValueError("a level or a scale is not positive")
        ties, diagonal = [np.zeros(layout.own[0].shape)], [np.zeros(layout.own[0].shape[:2])]
        rest = Fraction(0)
        for layer, at, numbers, level in zip(
            layers, layout.own[1:], self.ties, self.levels, strict=True
        ):
            ties.append(ties_of(numbers, at))
            constants = image_of_zero(layer[:-1], proof).moved(lambda end: end[:, None])
            gamma = np.maximum((exact(ties[-1]) @ constants).hi[:, :, 0], 0.0)
            total = sum(map(Fraction, gamma.ravel().tolist()), Fraction(0))
            rest += total * Fraction(level) * math.prod(layout.places)
            diagonal.append(up(gamma / level))
        diagonal[-1] = up(diagonal[-1] + 1.0)
        added = [np.array(numbers, dtype=np.float64) for numbers in self.added]
        entries = [kernel.entries for kernel in kernels]
        return layout.kernel(entries, ties, added, diagonal, self.scales, self.shift), rest


def layers_of(proof: Proof, values: Sequence[str], value: str) -> Sequence[Sequence[Step]]:
    """Return the steps up to and including each ReLU; raise NotProved if a hypothesis fails."""
    steps = [proof.step(name) for name in (*values, value)]
    if not all(b.inputs == (a.output,) for a, b in itertools.pairwise(steps)):
        raise NotProved("its steps do not follow one another")
    if proof.free & tensors_read(steps):
        raise NotProved("weights between its values may change")
    ends = [k for k, step in enumerate(steps, start=1) if step.op == RELU]
    if ends[-1:] != [len(steps)]:
        raise NotProved("it is not of a ReLU")
    return [steps[first:stop] for first, stop in itertools.pairwise([0, *ends])]


def kernels_of(proof: Proof, layers: Sequence[Sequence[Step]]) -> list[Kernel]:
    """Return the kernel of each layer; raise NotProved if a layer is not a plain convolution."""
    kernels = [kernel_of(layer[:-1], proof.program.shapes) for layer in layers if layer[:-1]]
    if len(kernels) < len(layers) or any(k.adjoint or k.is_matrix for k in kernels):
        raise NotProved("a layer is not a plain convolution")
    return kernels


def ties_of(magnitudes: Sequence[float] | Array, places: IndexArray) -> Array:
    """Return Θ for each phase; no entry off its diagonal is positive."""
    found = np.array(magnitudes, dtype=np.float64).reshape(places.shape)
    return np.where(np.eye(places.shape[1], dtype=np.bool_), found, -found)
