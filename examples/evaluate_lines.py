"""The lines of a perceptron's certificate, evaluated by the formulas of docs/format.md.

    python examples/evaluate_lines.py CERTIFICATE MODEL

Of networks of Gemm and Relu in a row, in plain float64 without bounds of rounding: it shows how
little a checker has to do, and is not one. It prints what is stated over what follows, per line.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

INF = math.inf
Array = npt.NDArray[np.float64]
Line = dict[str, Any]


class Fact:
    """‖x‖ ≤ norm, lo ≤ x ≤ hi, for a row x, which is completed."""

    def __init__(  # noqa: PLR0917
        self,
        size: int,
        norm: float = INF,
        lo: Array | float = -INF,
        hi: Array | float = INF,
        row: float = INF,
        column: float = INF,
    ) -> None:
        row, column = min(row, norm), min(column, norm)
        most = min(row, column)
        self.lo, self.hi = np.full(size, -most), np.full(size, most)
        self.lo, self.hi = np.maximum(self.lo, lo), np.minimum(self.hi, hi)
        magnitude = np.maximum(-self.lo, self.hi)
        length = np.linalg.norm(magnitude)
        self.norm = min(norm, length, row, math.sqrt(size) * column)
        self.row = min(row, self.norm, length)
        self.column = min(column, self.norm, magnitude.max())

    @classmethod
    def at(cls, point: Array) -> Fact:
        """Of a point alone."""
        return cls(len(point), np.linalg.norm(point), point, point)

    def meet(self, other: Fact) -> Fact:
        """Both, of one value."""
        pairs = [(self.norm, other.norm), (self.row, other.row), (self.column, other.column)]
        norm, row, column = map(min, pairs)
        low, high = np.maximum(self.lo, other.lo), np.minimum(self.hi, other.hi)
        return Fact(len(low), norm, low, high, row, column)


class Evaluation:
    """The state of a proof. Each rule is a method, which returns what follows."""

    def __init__(self, certificate: dict[str, Any], graph: onnx.GraphProto) -> None:
        self.said = certificate
        self.tensors = {t.name: numpy_helper.to_array(t).astype(float) for t in graph.initializer}
        self.makers = {node.output[0]: node for node in graph.node}
        self.input, self.output = graph.input[0].name, graph.output[0].name
        self.data = {item["id"]: item["data"] for item in certificate["assumptions"]}
        self.norms: dict[str, float] = {}
        self.facts: dict[str, Fact] = {}
        self.balls: dict[int, Fact] = {}
        self.radii: dict[tuple[int, str], float] = {}
        self.forms: dict[int, Line] = {}
        self.cotangents: dict[tuple[str, str], tuple[float, float | None]] = {}
        self.cotangents["output", self.output] = 1.0, None
        self.edges: dict[tuple[str, str, str], float] = {}

    def lines(self) -> Iterator[tuple[Line, float, float | None]]:
        """What follows by each line, and what it states."""
        for number, line in enumerate(self.said["lines"]):
            stated = float.fromhex(line["bound"]) if "bound" in line else None
            yield line, getattr(self, line["rule"].replace("/", "_"))(number, line, stated), stated

    def operands(self, value: str) -> tuple[Array, Array]:
        """The matrix and the bias of a Gemm."""
        weight, *bias = (self.tensors[name] for name in self.makers[value].input[1:])
        return weight, bias[0] if bias else np.zeros(len(weight))

    def below(self, value: str) -> str:
        """What the step reads that computes a value."""
        return str(self.makers[value].input[0])

    def steps(self, start: str, stop: str) -> list[str]:
        """The values between two, in order."""
        return [] if start == stop else [*self.steps(start, self.below(stop)), stop]

    def size(self, value: str) -> int:
        """How many entries a value has."""
        relu = self.makers[value].op_type == "Relu"
        return len(self.operands(self.below(value) if relu else value)[0])

    def norm(self, value: str) -> float:
        """Of a linear step: as a line proves it, or that of all entries."""
        return self.norms.get(value, float(np.linalg.norm(self.operands(value)[0])))

    def step(self, value: str, x: Fact) -> Fact:
        """The table of steps: dense/1 and activation.relu/1."""
        if self.makers[value].op_type == "Relu":
            low, high = np.maximum(x.lo, 0.0), np.maximum(x.hi, 0.0)
            return Fact(len(low), x.norm, low, high, x.row, x.column)
        (weight, bias), norm = self.operands(value), self.norm(value)
        cross, shift = np.linalg.norm(weight.T @ bias), np.linalg.norm(bias)

        def affine(length: float) -> float:
            square = (norm * length) ** 2 + shift**2 + 2.0 * length * cross
            return min(norm * length + shift, math.sqrt(square))

        middle, radius = 0.5 * (x.lo + x.hi), 0.5 * (x.hi - x.lo)
        by_box = np.linalg.norm(weight @ middle + bias) + norm * np.linalg.norm(radius)
        parts = [weight, weight]
        if (x.lo >= 0.0).all():
            parts = [np.minimum(weight, 0.0), np.maximum(weight, 0.0)]
        most = min(norm, np.linalg.norm(weight))
        low, high = (np.minimum(np.linalg.norm(part, axis=1), most) * x.row for part in parts)
        low = np.maximum(weight @ middle - np.abs(weight) @ radius, -low) + bias
        high = np.minimum(weight @ middle + np.abs(weight) @ radius, high) + bias
        return Fact(len(weight), min(affine(x.norm), by_box), low, high, affine(x.row))

    def image(self, start: str, fact: Fact, stop: str) -> dict[str, Fact]:
        """Facts of a point at the start of some steps, and of what they make of it."""
        found = {start: fact}
        for value in self.steps(start, stop):
            found[value] = self.step(value, found[self.below(value)])
        return found

    def zero(self, start: str, stop: str) -> dict[str, Fact]:
        """The same of 0."""
        return self.image(start, Fact.at(np.zeros(len(self.facts[start].lo))), stop)

    # rules: norms and values

    def norm_step(self, _: int, line: Line, stated: float) -> float:
        self.norms[line["value"]] = stated
        return np.linalg.norm(self.operands(line["value"])[0], 2)

    def kept(self, line: Line, stated: float, fact: Fact) -> float:
        """A fact, with the norm that is stated, beside what is known."""
        derived, fact.norm, value = fact.norm, stated, line["value"]
        self.facts[value] = self.facts[value].meet(fact) if value in self.facts else fact
        return derived

    def fact_input(self, _: int, line: Line, stated: float) -> float:
        size = self.operands(next(iter(self.makers)))[0].shape[1]
        given = self.data["A-INPUT"]
        ends = [float.fromhex(end) for end in given["box"]] if "box" in given else [-INF, INF]
        norm = float.fromhex(given["norm"]) if "norm" in given else INF
        return self.kept(line, stated, Fact(size, norm, *ends))

    def fact_step(self, _: int, line: Line, stated: float) -> float:
        value = line["value"]
        return self.kept(line, stated, self.step(value, self.facts[self.below(value)]))

    def fact_affine(self, _: int, line: Line, stated: float) -> float:
        (linear,), value = line["values"], line["value"]
        start = self.below(linear)
        at_zero, x, norm = self.zero(start, value)[value], self.facts[start], self.norm(linear)
        if value != linear:
            at_zero = Fact(len(at_zero.lo), lo=at_zero.lo, hi=at_zero.hi)
        ends = norm * x.norm + at_zero.norm, norm * x.row + at_zero.row
        return self.kept(line, stated, Fact(len(at_zero.lo), ends[0], row=ends[1]))

    def fact_gain(self, _: int, line: Line, stated: float) -> float:
        p, q, (tau,) = ([float.fromhex(x) for x in row] for row in line["numbers"])
        (linear,), gain = line["values"], float.fromhex(line["gain"])
        x, (weight, bias) = self.facts[self.below(linear)], self.operands(linear)
        raised = np.maximum(np.column_stack([weight, bias / tau]), -np.outer(p, q))
        gain = gain if gain >= np.linalg.norm(raised, 2) else INF
        ends = gain * math.hypot(x.norm, tau), gain * math.hypot(x.row, tau)
        return self.kept(line, stated, Fact(len(weight), ends[0], row=ends[1]))

    def ball_input(self, number: int, line: Line, stated: float) -> float:
        x, (share,) = self.facts[self.input], map(float.fromhex, line["shares"])
        centre = (1.0 - share) * 0.5 * (x.lo + x.hi)
        ends = [(end - centre) ** 2 - share * end**2 for end in (x.lo, x.hi)]
        self.balls[number], self.radii[number, self.input] = Fact.at(centre), stated
        return math.sqrt(share * x.norm**2 + np.maximum(*ends).sum())

    def ball_form(self, _: int, line: Line, stated: float) -> float:
        form, ball = self.forms[line["form"]], line["ball"]
        self.radii[ball, form["stop"]] = stated
        return form["norm"] * self.radii[ball, form["start"]]

    def fact_ball(self, _: int, line: Line, stated: float) -> float:
        form, ball = self.forms[line["form"]], line["ball"]
        value = self.image(self.input, self.balls[ball], form["stop"])[form["stop"]]
        return self.kept(line, stated, around(value, form, self.radii[ball, form["start"]], line))

    def fact_zero(self, _: int, line: Line, stated: float) -> float:
        form = self.forms[line["form"]]
        value = self.zero(form["start"], form["stop"])[form["stop"]]
        return self.kept(line, stated, around(value, form, self.facts[form["start"]].norm, line))

    def form_chain(self, number: int, line: Line, stated: float) -> float | None:
        """P = CᵀA⁻¹C − B."""
        start, steps = line["start"], self.steps(line["start"], line["stop"])
        lists, points = list(line["multipliers"]), {}
        if line["use"] == "chords":
            points = self.zero(start, line["stop"])
        diagonals = {}
        for value in steps:
            if self.makers[value].op_type == "Relu":
                x = self.facts[self.below(value)]
                low, high = x.lo, x.hi
                if points:
                    point = points[self.below(value)]
                    low, high = np.minimum(low, point.lo), np.maximum(high, point.hi)
                low, high = np.where(low > 0.0, 1.0, 0.0), np.where(high < 0.0, 0.0, 1.0)
                weights = [float.fromhex(x) for x in (lists.pop(0) if lists else [])]
                diagonals[value] = (high if value == steps[0] else low), high, weights
        size = self.size(line["stop"])
        first = sum(int((low != high).sum()) for low, high, _ in diagonals.values())
        below = first
        rows = np.eye(first + size)[first:]
        matrix = np.zeros((first + size, first + size))
        for value in reversed(steps):
            if value not in diagonals:
                rows = self.operands(value)[0].T @ rows
                continue
            low, high, weights = diagonals[value]
            known = high[:, None] * rows
            for k in np.flatnonzero(low != high):
                first -= 1
                known[k] = np.eye(len(matrix))[first]
                ends = [known[k] - slope * rows[k] for slope in (low[k], high[k])]
                matrix += 0.5 * weights[k] * (np.outer(*ends) + np.outer(*ends[::-1]))
            rows = known
        matrix -= rows.T @ rows
        cross, block = matrix[:below, below:], matrix[below:, below:]
        np.linalg.cholesky(matrix[:below, :below])  # it is positive definite
        p = cross.T @ np.linalg.solve(matrix[:below, :below], cross) - block
        self.forms[number] = {**line, "P": p, "first": steps[0], "norm": stated}
        return None if stated == INF else largest(p)

    # rules: cotangents and gradients

    def pull_loss(self, _: int, line: Line, stated: float) -> float:
        loss, x = self.data["A-LOSS"], self.facts[self.output]
        given, size = loss["parameters"], len(x.lo)
        divisor = size if given.get("output_reduction") == "mean" else 1
        norm, hull = {
            "mae": lambda: (math.sqrt(size), None),
            "kr": lambda: (math.sqrt(size / (size - 1)), 1.0),
            "multi-margin": lambda: (math.sqrt(size * (size - 1)), size - 1.0),
            "mse": lambda: (
                (2 - (given["half"] == "true")) * (x.norm + float.fromhex(given["label_norm"])),
                None,
            ),
        }[loss["kind"]]()
        self.cotangents["loss", line["value"]] = stated, hull and hull / divisor
        return norm / divisor

    def pull_value(self, _: int, line: Line, stated: float) -> float:
        value, of = line["value"], line["of"]
        (reader,) = (v for v, node in self.makers.items() if node.input[0] == value)
        norm, hull = self.cotangents[of, reader]
        if self.makers[reader].op_type == "Gemm":
            weight = self.operands(reader)[0]
            over_hull = INF if hull is None else hull * pairs(weight @ weight.T)
            norm = min(self.norm(reader) * norm, over_hull)
        self.cotangents[of, value] = stated, None
        return min(norm, self.edges.get((of, value, reader), INF))

    def pull_form(self, _: int, line: Line, stated: float) -> float:
        form, of = self.forms[line["form"]], line["of"]
        norm, hull = self.cotangents[of, form["stop"]]
        self.edges[of, form["start"], form["first"]] = stated
        return form["norm"] * norm if line["by"] == "norm" else hull * pairs(form["P"])

    def grad_tensor(self, _: int, line: Line, __: float) -> float:
        found = 0.0
        for value, node in self.makers.items():
            for place, name in enumerate(node.input[1:]):
                if name == line["tensor"]:
                    reach = 1.0 if place else self.facts[node.input[0]].norm
                    found += reach * self.cotangents["loss", value][0]
        return found


def largest(matrix: Array) -> float:
    """The root of the largest eigenvalue."""
    return math.sqrt(max(np.linalg.eigvalsh(matrix)[-1], 0.0))


def pairs(matrix: Array) -> float:
    """The largest √(vᵀMv) of the vertices v = e_j − e_y of a hull without smoothing."""
    diagonal = np.diag(matrix)
    return math.sqrt((diagonal[:, None] + diagonal - 2.0 * matrix).max())


def around(value: Fact, form: Line, radius: float, line: Line) -> Fact:
    """What is near a value, by a form."""
    middle, p = 0.5 * (value.lo + value.hi), form["P"]
    if "level" in line:
        level = float.fromhex(line["level"])
        near = middle @ np.linalg.solve(level * np.eye(len(p)) - p, middle)
        found = math.sqrt(level * (radius**2 + near))
    else:
        found = np.linalg.norm(np.maximum(-value.lo, value.hi)) + form["norm"] * radius
    swing = radius * np.sqrt(np.diag(p))
    return Fact(len(middle), found, value.lo - swing, value.hi + swing)


def ratios(certificate: Path | str, model: Path | str) -> Iterator[tuple[str, float]]:
    """What each line states over what follows."""
    said = json.loads(Path(certificate).read_bytes())
    with np.errstate(invalid="ignore"):
        for line, derived, stated in Evaluation(said, onnx.load(model).graph).lines():
            if stated is not None:
                yield line["rule"], stated / derived


if __name__ == "__main__":
    for rule, ratio in ratios(*sys.argv[1:]):
        print(f"{rule:12} {ratio:.9f}  {'follows' if ratio >= 1.0 else 'DOES NOT FOLLOW'}")
