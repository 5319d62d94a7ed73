"""Convolutions behind a padding that repeats entries (wrap, reflect, edge), as one layer.

What enters: a graph, facts, cotangents. What leaves: gradient bounds of the kernel that count how
often each entry *before* the padding is read. Padding first and convolving then would count the
largest repetition of the padding and the largest overlap of the windows as if they met everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import final

import numpy as np

from lipcert.facts import Bound, CotangentFacts, Shape, ValueFacts, product_of, tightest
from lipcert.ir import Graph, Node
from lipcert.norms.geometry import Window
from lipcert.ops.broadcasting import root_of
from lipcert.ops.conv import Conv
from lipcert.ops.shape import Pad, PadMode

_REPEATING = frozenset({PadMode.WRAP, PadMode.REFLECT, PadMode.EDGE})


@final
@dataclass(frozen=True, slots=True)
class _Reads:
    """overall: how often one entry is read by all windows; within: by any single window."""

    overall: int
    within: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class PaddedConvs:
    """For each convolution behind a repeating padding: the padded value, and its reads."""

    reads: Mapping[str, tuple[str, _Reads]]

    @classmethod
    def of(cls, graph: Graph) -> PaddedConvs:
        """All of a graph. The padding must leave batch and channel axes alone."""
        found: dict[str, tuple[str, _Reads]] = {}
        pads: dict[str, tuple[str, Pad]] = {}
        for node in graph.nodes:
            if isinstance(node.op, Pad) and _repeats_pixels(node.op):
                pads[node.output] = (node.inputs[0], node.op)
            elif isinstance(node.op, Conv) and node.inputs[0] in pads:
                source, pad = pads[node.inputs[0]]
                found[node.name] = (source, _reads(pad, node.op, graph.shape_of(source)))
        return cls(found)

    def refined(
        self,
        node: Node,
        shares: Mapping[str, Bound],
        cotangent: CotangentFacts,
        facts: Mapping[str, ValueFacts],
    ) -> Mapping[str, Bound]:
        """Returns, for the kernel, also √overall·‖x‖·l and √within·‖x‖·S; the bias as it is.

        x is the value before the padding, l bounds the cotangent, S its channel sums.
        Proof: the gradient is Σ_p g(p)·patch(p). In the patch matrix every entry of x stands
        `overall` times at most, so its Frobenius norm is at most √overall·‖x‖. In one patch it
        stands `within` times at most, so ‖patch_i(p)‖ ≤ √within·‖x_i‖ for input channel i and
        ‖Σ_p g_c(p)·patch_i(p)‖ ≤ ‖g_c‖₁·√within·‖x_i‖; squares add over c and i. Both counts are
        products over the axes, because padding and windows are.
        """
        if node.name not in self.reads:
            return shares
        source, reads = self.reads[node.name]
        rule = "conv.param_grad_norms.padded"
        norm = facts[source].norm
        bounds = [product_of(rule, norm, cotangent.norm).scaled(root_of(reads.overall))]
        if cotangent.channel_sums is not None:
            by_sums = product_of(rule, norm, cotangent.channel_sums)
            bounds.append(by_sums.scaled(root_of(reads.within)))
        return {**shares, "weight": tightest(shares["weight"], *bounds)}


def _repeats_pixels(pad: Pad) -> bool:
    return pad.mode in _REPEATING and pad.begin[:1] == (0,) and pad.end[:1] == (0,)


def _reads(pad: Pad, conv: Conv, shape: Shape) -> _Reads:
    axes = zip(shape[1:], pad.begin[1:], pad.end[1:], conv.geometry, strict=True)
    counted = [
        _axis_reads(length, (begin, end), pad.mode, window) for length, begin, end, window in axes
    ]
    return _Reads(prod(r.overall for r in counted), prod(r.within for r in counted))


def _axis_reads(length: int, pads: tuple[int, int], mode: PadMode, window: Window) -> _Reads:
    """Counts along one axis; reads of the convolution's own zero padding count for nothing."""
    sources = np.pad(np.arange(length), pads, mode=mode.value)
    places = np.arange(window.outputs)[:, None] * window.stride - window.pad_begin
    places = places + np.arange(window.taps) * window.dilation
    inside = (places >= 0) & (places < window.size)
    overall = np.zeros(length, dtype=np.int64)
    within = 1
    for row, real in zip(places, inside, strict=True):
        counts = np.bincount(sources[row[real]], minlength=length)
        overall += counts
        within = max(within, int(np.max(counts, initial=0)))
    return _Reads(max(1, int(np.max(overall, initial=0))), within)
