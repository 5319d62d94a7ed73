"""Norms of convolutions of wrapped inputs: where these are circular, they have finitely many
frequencies themselves.

What enters: kernels, geometry and tables of reads. What leaves: a bound of the norm of the finite
map with its torus, inf where the map is not circular.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lipcert.norms.circulant import extended_axes, norm_on_tori
from lipcert.norms.geometry import Geometry, Window
from lipcert.norms.laurent import laurent_norm
from lipcert.norms.polyphase import polyphase
from lipcert.norms.proved import UNPROVED, Proved
from lipcert.norms.reads import Reads
from lipcert.norms.torus import Torus
from lipcert.upper import INFINITE, FloatArray


def wrapped_norm(
    kernels: FloatArray, geometry: Geometry, reads: Sequence[Reads], budget: float
) -> Proved:
    """Returns B with B ≥ ‖T‖₂ of the convolution T of an input that is wrapped around.

    kernels: [groups, out, in, *taps]. geometry: windows over the wrapped input; reads: what they
    read of the input itself. budget: floating-point operations the proof may cost.
    Hypotheses: along each axis of n positions the stride s divides n, tap t of output o reads
    entry s·o + dilation·t + constant modulo n, and there are at most n/s outputs; inf otherwise.
    Proof: let g = gcd(s, dilation), P = s/g, D = dilation/g, N = n/s. Tap P·j + r of output o
    reads s·(o + D·j) + dilation·r + constant: modulo n, number o + D·j modulo N of the inputs of
    phase r, r < P, and different phases have different residues modulo s. So T consists of rows
    of the circular convolution over N positions by the polyphase kernel, with shifts D·j, and
    ‖T‖ is at most the largest ‖P(D·w)‖ over w = 2πk/N, which are the multiples of 2π gcd(N, D)/N.
    Boxes as in `circulant_norm`; on large maps the supremum over all w, by `laurent_norm`.
    Witness: a `TorusCertificate`, or a `CellCertificate`.
    Attained: by the circular convolution itself, within 0.02 % unless the map is large.
    """
    if not all(_is_circular(w, table) for w, table in zip(geometry, reads, strict=True)):
        return UNPROVED
    phases = polyphase(kernels, geometry)
    whole = tuple(_circle_size(w, t.size) for w, t in zip(geometry, reads, strict=True))
    spans, counts = extended_axes(phases, whole)
    proved = norm_on_tori(phases, [Torus(spans, counts, (0,) * len(counts))], budget)
    if proved.bound.is_finite:
        return proved
    return laurent_norm(kernels, geometry, INFINITE, budget)


def _is_circular(window: Window, reads: Reads) -> bool:
    """The hypotheses of `wrapped_norm` for one axis."""
    size, stride = reads.size, window.stride
    if size % stride or reads.outputs * stride > size:
        return False
    starts, offsets = stride * np.arange(reads.outputs), window.dilation * np.arange(reads.taps)
    expected = (starts[:, None] + offsets + reads.sources[0, 0]) % size
    return np.array_equal(reads.sources, expected)


def _circle_size(window: Window, size: int) -> int:
    """N/gcd(N, D) of `wrapped_norm` for one axis."""
    positions = size // window.stride
    apart = window.dilation // math.gcd(window.stride, window.dilation)
    return positions // math.gcd(positions, apart)
