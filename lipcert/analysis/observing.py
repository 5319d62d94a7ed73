"""Observing: measure gradients of examples under the mechanism of the settings.

They are measured at the weights of the file, scaled into the constraints that training enforces,
and reported with the bounds. Findings say what a reader must know of private examples. Norms of
weights are estimates (a few steps of power iteration): nothing here is proved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from lipcert.analysis.bounded import Bounded
from lipcert.analysis.premises import constraints_of, plain_norm
from lipcert.core import program as p
from lipcert.core.program import FloatArray, Part
from lipcert.diagnostics import Diagnostic, Level
from lipcert.errors import NoVerdictError
from lipcert.gradient_stats.examples import Examples, outside, random_examples
from lipcert.gradient_stats.measure import (
    RIVAL,
    Met,
    Observed,
    met,
    numbers_held,
    observed_of,
)
from lipcert.graph.evaluate import batch_output
from lipcert.graph.ir import Graph, Operand, Use, graph_at, linear_step, parameters_of, places_of
from lipcert.search.pullbacks import stretched_most, work
from lipcert.settings.settings import ConstraintSpec, Settings

_ROUNDS: Final = 12
_SMALLEST: Final = float(np.finfo(np.float64).tiny)
_KNOWN: Final[WeakKeyDictionary[Operand, float]] = WeakKeyDictionary()
"""Norms of linear maps by the operand of the step; graphs made from one another share operands of
unchanged steps."""


def scaled_into(
    graph: Graph, constraints: Mapping[str, ConstraintSpec], *, exactly: bool = False
) -> Graph:
    """Return the graph with every constrained weight scaled down to its radius if it exceeds it.

    exactly: scale up to the radius as well, as fixed weight norms do.

    Raises:
        NoVerdictError: if operands contradict each other.
    """
    weights = parameters_of(graph)
    scaled: dict[str, FloatArray] = {}
    for name, constraint in constraints.items():
        norm = _norm(graph, name, constraint, weights[name])
        factor = constraint.radius / max(norm, _SMALLEST)
        if norm > 0.0 and (exactly or factor < 1.0):
            scaled[name] = factor * weights[name]
    return graph_at(graph, scaled) if scaled else graph


def _norm(graph: Graph, name: str, constraint: ConstraintSpec, weight: FloatArray) -> float:
    """Estimate the norm that a constraint limits, of the numbers or of the maps of steps."""
    if constraint.kind == "frobenius":
        return float(np.linalg.norm(weight))
    return max(map(spectral_norm, graph.uses(name)), default=0.0)


def spectral_norm(use: Use) -> float:
    """Estimate the spectral norm of a step's linear map.

    For a table it is the longest row, for other operands the largest entry.
    """
    plain = plain_norm(use)
    if plain is not None:
        return plain[1]
    if use.operand not in _KNOWN:
        _KNOWN[use.operand] = _of_linear_map(use)
    return _KNOWN[use.operand]


def _of_linear_map(use: Use) -> float:
    array = use.operand.array
    if isinstance(use.node.op, p.Dense):
        return float(np.linalg.norm(array, 2)) if array.size else 0.0
    step, given = linear_step(use.node, array)
    return float(np.linalg.norm(batch_output(step, [stretched_most(step, given, _ROUNDS)])))


_MOST: Final = 256
"""Most random examples; the results of as many others differ by a few per cent."""
_LEAST: Final = 8
_WORK: Final = 5e8
"""Floating-point operations to spend on random examples: about half a second."""
_WORK_OF_LEAST: Final = 5e9
"""Operations to spend on a few examples of a network that takes seconds to analyse: about one."""
_MOST_NUMBERS: Final = 1 << 24
"""Most numbers held for one example: 128 MiB, and about as much for one step at a time."""
_LARGEST_WORK: Final = 3e10
"""Floating-point operations to spend on given examples: about half a minute."""
_FEW: Final = 64


def observed_at(
    found: Bounded, settings: Settings, examples: Examples, plain: Met | None = None
) -> Observed | None:
    """Measure gradients of these examples.

    Of too many, every second, third, … is taken; the result says how many were measured.

    Args:
        found: the bounds of the network.
        settings: the settings of the run.
        examples: inputs and labels.
        plain: what `plain_gradients` found of them before.

    Returns:
        The measurements; None if a gradient is not finite, or that of the loss is not known here.

    Raises:
        NoVerdictError: for labels that the loss does not admit.
    """
    graph, clip = held(found.graph, settings), found.premises.clip
    try:
        plain = plain or plain_gradients(found, examples)
        if plain is None:
            return None
        is_plain = graph is found.unclipped and found.loss_clip is None
        own: Met | None = plain
        if not (is_plain and plain.knows(clip)):
            given = graph, plain.groups, found.loss, plain.examples
            own = met(*given, loss_clip=found.loss_clip, clips=(clip,))
        return None if own is None else observed_of(own, clip, plain)
    except TypeError:
        return None


def plain_gradients(found: Bounded, examples: Examples) -> Met | None:
    """Return gradients of the network without clips or constraints, as gradient clipping runs it.

    The result is None without examples.

    Raises:
        TypeError: if the gradient of the loss is not known here.
    """
    clips = (RIVAL, found.premises.clip)
    examples = _thinned(_with_rows(examples, found.graph.inputs), found)
    groups = {group.name: group.parameters for group in found.groups}
    return met(found.unclipped, groups, found.loss, examples, clips=clips)


def held(graph: Graph, settings: Settings) -> Graph:
    """Return the graph at weights within the constraints that training enforces, approximately."""
    constraints = constraints_of(graph, settings)
    exactly = settings.enforced.scales_up
    return scaled_into(graph, constraints, exactly=exactly) if constraints else graph


def _with_rows(examples: Examples, inputs: Sequence[Part]) -> Examples:
    """Drop examples whose row numbers do not exist: the network has no output there."""
    if all(part.ids is None for part in inputs):
        return examples
    flat = np.asarray(examples.x, np.float64).reshape(len(examples), -1)
    known = np.ones(len(flat), bool)
    for part, where in places_of(inputs):
        x = flat[:, where]
        if part.ids is not None:
            known &= ((x == np.rint(x)) & (x >= -part.ids) & (x < part.ids)).all(axis=1)
    return replace(examples, x=examples.x[known], y=examples.y[known])


def _thinned(examples: Examples, found: Bounded) -> Examples:
    """Take as many examples as the work allows, evenly from first to last, but never few."""
    most = max(int(_LARGEST_WORK / work(found.program)), _FEW)
    every = -(-len(examples) // most)
    return (
        replace(examples, x=examples.x[::every], y=examples.y[::every]) if every > 1 else examples
    )


def observed_at_random(found: Bounded, settings: Settings, seed: int = 0) -> Observed | None:
    """Measure gradients of random admissible examples; None where `left_out` says why not.

    The result depends only on the network and the seed.
    """
    if left_out(found) or not found.groups:
        return None
    count = min(max(int(_WORK / work(found.program)), _LEAST), _MOST)
    graph = found.graph
    drawn = random_examples(
        graph.input_shape, found.domain, found.loss, graph.output_shape, count, seed=seed
    )
    try:
        return None if drawn is None else observed_at(found, settings, drawn)
    except NoVerdictError:  # of operands that are no views of what they show, say
        return None


def left_out(found: Bounded) -> tuple[Diagnostic, ...]:
    """Return why no random examples are measured, if they are not.

    A few may take seconds, or one may take more memory than the rest of an analysis.
    """
    if not found.groups:
        return ()
    operations, numbers = _LEAST * work(found.program), numbers_held(found.program)
    if found.graph.computed:
        names = ", ".join(map(repr, found.graph.computed[:4]))
        message = f"no gradients were measured: weights are computed from {names}"
        remedy = "train plain weights, as torch.nn.utils.parametrize.remove_parametrizations leaves"
        return (Diagnostic("LC411", Level.INFO, "", message, remedy),)
    if operations > _WORK_OF_LEAST:
        why = (
            f"{_LEAST} of them take {operations:.1e} operations, and {_WORK_OF_LEAST:.0e} are spent"
        )
    elif numbers > _MOST_NUMBERS:
        why = f"one takes {numbers:.1e} numbers in memory, and {_MOST_NUMBERS:.1e} are held"
    else:
        return ()
    message = f"no gradients of random examples were measured: {why}"
    remedy = "give examples (--data), which are measured whatever it takes"
    return (Diagnostic("LC411", Level.INFO, "", message, remedy),)


def findings_on_examples(
    examples: Examples, observed: Observed | None, settings: Settings
) -> tuple[Diagnostic, ...]:
    """Return what a reader must know of gradients that were measured at given examples."""
    found = []
    if examples.is_private:
        message = (
            f"gradients were measured at the {len(examples)} examples of {examples.source}: what "
            "is learned from them costs privacy that no ε of the run covers"
        )
        remedy = "measure at public or synthetic examples of the declared domain"
        found.append(Diagnostic("LC410", Level.WARNING, "", message, remedy))
    count = len(outside(examples.x, settings))
    if count:
        message = (
            f"{count} of {len(examples)} examples of {examples.source} lie outside the declared "
            "input domain: no bound applies to them"
        )
        remedy = "prepare them as training does, or declare the domain that the pipeline enforces"
        found.append(Diagnostic("LC304", Level.WARNING, "", message, remedy))
    if observed is None:
        message = "a gradient at the examples is not finite, so nothing was measured"
        remedy = "look for examples at which the network overflows or divides by zero"
        found.append(Diagnostic("LC306", Level.WARNING, "", message, remedy))
    return tuple(found)
