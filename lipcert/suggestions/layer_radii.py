"""Layer radii: what the layers of a network read and receive, at examples and by its bounds.

What enters: the bounds of a network under backpropagation clipping, and examples. What leaves: for
each layer medians of the norms that its clips would meet, from which radii follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from lipcert.analysis.bounded import Bounded
from lipcert.core import program as p
from lipcert.core.clips import layer_steps
from lipcert.core.coverage import tensors_read
from lipcert.core.ledger import BackpropClipping
from lipcert.core.program import FloatArray
from lipcert.errors import LipCertError
from lipcert.gradient_stats.labels import checked_labels
from lipcert.graph.evaluate import evaluate_batch
from lipcert.losses import loss_gradients
from lipcert.search.pullbacks import cotangents, pulls
from lipcert.suggestions import mechanisms
from lipcert.suggestions.analyst import Analyst
from lipcert.suggestions.mechanisms import LayerRadii
from lipcert.suggestions.structure import module_of

_MOST: Final = 16
"""examples"""


def layer_radii(analyst: Analyst) -> tuple[LayerRadii, ...]:
    """Every layer that would clip, in their order; none where that is refused or not known."""
    examples = analyst.examples
    try:
        found = analyst.analysed((mechanisms.clips_of_all(1.0, 1.0),)).found
        mechanism = found.premises.mechanism
        if examples is None or not isinstance(mechanism, BackpropClipping):
            return ()
        x = np.asarray(examples.x[:_MOST], np.float64)
        labels = checked_labels(found.loss, examples.y[:_MOST], found.graph.output_shape)
        values, gradients = _passed(analyst.base, x, labels)
    except (LipCertError, TypeError):
        return ()
    program, owners = analyst.base.file_program, _owners(found)
    radii = []
    for layer in mechanism.layers:
        start, end = layer.ends
        steps = layer_steps(program, (start, end))
        names = {owners[name] for name in tensors_read(steps) if name in owners}
        if not steps or not names or end not in gradients:
            continue
        by_channel = mechanism.is_by_channel and any(isinstance(s.op, p.Conv) for s in steps)
        norms = _lengths(values[start]), _lengths(gradients[end], by_channel=by_channel)
        if all(np.isfinite(norm).all() for norm in norms):
            reads, receives = (float(np.median(norm)) for norm in norms)
            bound = found.derived.facts[start].norm
            radii.append(LayerRadii(_layer(min(names)), reads, receives, bound))
    return tuple(radii)


def _passed(
    base: Bounded, x: FloatArray, labels: FloatArray
) -> tuple[Mapping[str, FloatArray], Mapping[str, FloatArray]]:
    """Values and gradients of the network without clips, by name."""
    program = base.file_program
    with np.errstate(all="ignore"):
        values = evaluate_batch(program, x.reshape(len(x), *program.shapes[program.input]))
        output = values[program.output]
        shape = base.graph.output_shape
        seeds = loss_gradients(base.loss, output.reshape(len(x), *shape), labels)
        seeds = seeds.reshape(output.shape)
        return values, cotangents(program, pulls(program, values), {program.output: seeds})


def _owners(found: Bounded) -> Mapping[str, str]:
    """Trained parameters by the tensors that hold them."""
    return {
        tensor: name
        for name, held in found.tensors.items()
        if found.graph.parameters[name].trainable
        for tensor in held
    }


def _layer(parameter: str) -> str:
    """As tables of clips name it."""
    return module_of(parameter) or parameter


def _lengths(array: FloatArray, *, by_channel: bool = False) -> FloatArray:
    """Of each example, as its clip measures it; channels stand along axis 2 of the stack."""
    if by_channel and array.ndim > 2:
        sums = np.abs(np.moveaxis(array, 2, 1)).reshape(len(array), array.shape[2], -1).sum(axis=2)
        return np.asarray(np.linalg.norm(sums, axis=1))
    return np.asarray(np.linalg.norm(array.reshape(len(array), -1), axis=1))
