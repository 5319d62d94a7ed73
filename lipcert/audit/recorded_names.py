"""Names: which recorded tensor is which parameter of the graph.

Input: a graph, the shapes that a trace records, and the recorded numbers where names do not
suffice. Output: for each parameter of the graph the recorded name and its orientation, or a
NoVerdictError that names what could not be matched. Invariant: nothing is guessed: a name agrees up
to a prefix, or the numbers agree exactly and with one tensor only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from lipcert.core.program import Shape
from lipcert.diagnostics import EXPORT
from lipcert.errors import NoVerdictError
from lipcert.graph.ir import Graph
from lipcert.graph.viewed import is_shown
from lipcert.upper import FloatArray

Snapshot: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""recorded tensors by name"""
_NAMED: Final = 3


@final
@dataclass(frozen=True, slots=True)
class Match:
    """A recorded tensor, and whether the file holds it transposed."""

    recorded: str
    transposed: bool = False

    def numbers(self, snapshot: Snapshot) -> FloatArray:
        """The numbers as the graph has them; float64 holds every recorded number exactly."""
        array = snapshot[self.recorded].astype(np.float64)
        return array.T if self.transposed else array


def matched(
    graph: Graph,
    recorded: Mapping[str, Shape],
    snapshots: Callable[[], Iterable[Snapshot]],
) -> Mapping[str, Match]:
    """The recorded tensor of every parameter that is trained, and of others where there is one.

    First by name: equal, or one ends in the other behind a dot ("module.fc.weight"). Exporters
    that make up names ("onnx::MatMul_12") leave the numbers: they decide where some recorded set
    of weights is, number by number, that of the file.
    """
    _refuse_folded(graph)
    found = {
        name: Match(candidates[0])
        for name, parameter in graph.parameters.items()
        if len(candidates := _by_name(name, parameter.shape, recorded)) == 1
    }
    if len({match.recorded for match in found.values()}) < len(found):
        raise _unmatched(graph, sorted(found), "several of them share one recorded tensor")
    missing = [name for name in graph.parameters if name not in found]
    trained = [name for name in missing if graph.parameters[name].trainable]
    if not trained:
        return found
    taken = {match.recorded for match in found.values()}
    for snapshot in snapshots():
        others = {name: item for name, item in snapshot.items() if name not in taken}
        by_numbers = _by_numbers(graph, trained, others)
        if by_numbers is not None:
            return {**found, **by_numbers}
    raise _unmatched(
        graph, trained, "no recorded tensor has their name, or at any step their numbers"
    )


def _by_name(name: str, shape: Shape, recorded: Mapping[str, Shape]) -> list[str]:
    """Recorded tensors of this name and shape; the very same name wins."""
    if recorded.get(name) == tuple(shape):
        return [name]
    return [
        other
        for other, its_shape in recorded.items()
        if its_shape == tuple(shape) and (other.endswith(f".{name}") or name.endswith(f".{other}"))
    ]


def _by_numbers(graph: Graph, names: list[str], others: Snapshot) -> Mapping[str, Match] | None:
    """The match of all these names by numbers; None where one has no tensor, or several."""
    found: dict[str, Match] = {}
    for name in names:
        shape = graph.parameters[name].shape
        candidates = [
            match
            for other, item in others.items()
            for match in (Match(other), Match(other, transposed=True))
            if _fits(match, item.shape, shape) and is_shown(graph, name, match.numbers(others))
        ]
        if len({match.recorded for match in candidates}) != 1:
            return None
        found[name] = candidates[0]
    distinct = {match.recorded for match in found.values()}
    return found if len(distinct) == len(found) else None


def _fits(match: Match, recorded: Shape, shape: Shape) -> bool:
    if match.transposed:
        return len(shape) == 2 and recorded == tuple(shape[::-1])
    return recorded == tuple(shape)


def _refuse_folded(graph: Graph) -> None:
    folded = [name for name, item in graph.parameters.items() if item.folded and item.trainable]
    if folded:
        raise NoVerdictError(
            f"[LC319] the file holds {_listed(folded)} computed from trained tensors, so weights "
            "of a run cannot be put in their place; train plain weights "
            f"(torch.nn.utils.parametrize.remove_parametrizations), and export with {EXPORT}"
        )


def _unmatched(graph: Graph, names: list[str], why: str) -> NoVerdictError:
    shapes = [f"{name} {list(graph.parameters[name].shape)}" for name in names]
    return NoVerdictError(
        f"[LC319] the trace cannot be matched with the parameters {_listed(shapes)} of the model: "
        f"{why}; export with {EXPORT}, or record the "
        "run that starts from the exported weights"
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(repr(name) for name in names[:_NAMED]) + more
