"""What is true of a certified network, found by examples, and what a list of lines says of it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import torch

from lipcert.core.line import NotProved
from lipcert.core.lines.chains import ChainForm
from lipcert.core.lines.norms import NormLine
from lipcert.core.lines.proof import LOSS, OUTPUT, Proof
from lipcert.search.forms import Spectra
from lipcert.search.prover import Derived
from tests.core.adversary import SLACK, Setting, Weights, project
from tests.core.mutants.tight import proof_of
from tests.core.onnx_torch import stored
from tests.core.rules.attack import holds


@dataclass
class Truth:
    """Values at examples, and the largest norms of gradients that were found."""

    values: list[Mapping[str, np.ndarray]] = field(default_factory=list)
    cotangents: dict[str, float] = field(default_factory=dict)
    gradients: dict[str, float] = field(default_factory=dict)
    lipschitz: float = 0.0


def truth_of(case, examples: int = 24) -> Truth:
    """At examples and labels drawn at random, and at weights where they are free."""
    proof, scope = proof_of(case.certificate, case.path), case.certificate.scope
    proto, nothing = onnx.load(case.path), Derived({}, {}, {}, math.inf)
    setting = Setting(proto, proof.program, proof.premises, scope, nothing)
    rng, found = np.random.default_rng(3), Truth()
    shapes = proof.program.shapes
    for _ in range(examples):
        drawn = rng.standard_normal(shapes[proof.program.input])
        x = project(torch.from_numpy(drawn * 10.0 ** float(rng.uniform(-1, 1))), proof.premises)
        weights = stored(proto)
        if scope.kind != "point":
            for name in scope.trained:
                weights[name] = torch.from_numpy(rng.standard_normal(weights[name].shape))
            for item in scope.constraints:
                weights[item.tensor] = _within(item, weights[item.tensor])
        label = torch.from_numpy(rng.standard_normal(shapes[proof.program.output]))
        _seen(setting, x, weights, label, found)
    return found


def _within(constraint, weight: torch.Tensor) -> torch.Tensor:
    """As long as it may be; of a convolution as long as the norms of its taps allow together."""
    norm = float(weight.norm())
    if constraint.kind == "spectral" and weight.ndim > 1:
        taps = weight.reshape(*weight.shape[:2], -1).movedim(2, 0)
        norm = float(torch.linalg.matrix_norm(taps, 2).sum())
    return weight * (constraint.radius / norm * (1.0 - 1e-12))


def _seen(
    setting: Setting, x: torch.Tensor, weights: Weights, label: torch.Tensor, found: Truth
) -> None:
    program = setting.program
    floats = {name: w for name, w in weights.items() if w.is_floating_point()}
    leaves = {name: w.detach().requires_grad_() for name, w in floats.items()}
    x = x.detach().requires_grad_()
    values = setting.values(x, {**weights, **leaves})
    known = {name: value for name, value in values.items() if name in program.shapes}
    found.values.append({name: value.detach().numpy() for name, value in known.items()})
    loss = setting.loss(values, label)
    inner = {name: value for name, value in known.items() if value.requires_grad}
    for table, wanted in ((found.cotangents, inner), (found.gradients, leaves)):
        rows = torch.autograd.grad(
            loss, list(wanted.values()), retain_graph=True, allow_unused=True
        )
        for name, row in zip(wanted, rows, strict=True):
            if row is not None:
                table[name] = max(table.get(name, 0.0), float(row.norm()))
    output = setting.values(x, {**weights, **leaves}, training=False)[program.output]
    slopes = [torch.autograd.grad(entry, x, retain_graph=True)[0] for entry in output.reshape(-1)]
    norm = float(torch.linalg.matrix_norm(torch.stack(slopes).flatten(1), 2))
    found.lipschitz = max(found.lipschitz, norm)


def with_lines(case, lines) -> Proof:
    """What follows from lines about the network of a case."""
    proof = proof_of(case.certificate, case.path)
    follow(proof, sorted(lines, key=lambda line: line.stage))
    return proof


def follow(proof: Proof, lines) -> None:
    """Adds lines to a proof, each with the least bound that it may state; those of which nothing
    follows are passed over, as if they were not there."""
    for number, line in enumerate(lines):
        proof.number = number
        try:
            stated = line
            if isinstance(line, ChainForm) and line.bound is None:
                stated = Spectra().stated(replace(line, bound=1.0), proof)
            if not isinstance(line, NormLine | ChainForm):
                bound = line.least(line.evaluate(proof))
                stated = replace(line, bound=bound if math.isfinite(bound) else None)
            proof.add(proof.number, stated)
        except NotProved:
            continue


def false_bounds(proof: Proof, truth: Truth) -> Iterator[str]:
    """What is proved to be smaller than it is."""
    for values in truth.values:
        for name, value in values.items():
            if name in proof.facts and not holds(proof.facts[name], value, SLACK):
                yield f"the value {name}"
    cotangents, unit = proof.passes[LOSS].cotangents, proof.passes[OUTPUT].cotangents
    for what, proved, found in (
        ("cotangent", {name: item.norm for name, item in cotangents.items()}, truth.cotangents),
        ("gradient", proof.gradients, truth.gradients),
        ("Lipschitz constant", {proof.program.input: unit[proof.program.input].norm}
         if proof.program.input in unit else {}, {proof.program.input: truth.lipschitz}),
    ):  # fmt: skip
        for name, norm in found.items():
            if name in proved and norm > proved[name] * (1.0 + SLACK) + 1e-12:
                yield f"the {what} of {name}: {norm!r}, and {proved[name]!r} is proved"
