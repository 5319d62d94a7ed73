"""No number of a certificate can be lowered by a millionth: of every line and of every claim."""

import math
from contextlib import suppress
from dataclasses import replace

import pytest

from lipcert.analysis.certificate import certify
from lipcert.core.accounting.account import derived_epsilon
from lipcert.core.claims import group_bounds, joint_multiplier, output_faults
from lipcert.core.coverage import drops, tensors
from lipcert.core.line import NotProved
from lipcert.core.lines.chains import ChainForm
from lipcert.core.lines.norms import NormLine
from lipcert.core.lower.lower import lower
from lipcert.core.reader.model import read_model
from lipcert.errors import LipCertError
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.core.models import SHIPPED
from tests.core.mutants.tight import proof_of
from tests.zoo import ZOO, needs_zoo, rows

LESS = 1.0 - 1e-6
PLAN = Settings(
    batch_size=16,
    dataset_size=400,
    steps=30,
    delta=1e-5,
    noise_multiplier=2.0,
    sampling="shuffle",
    neighbours="zero-out",
)
BY_DAY = {"digits_lipschitz_cnn"}
LARGEST, FILES = 2_000_000, 20


def spare(certificate, path):
    """What may be lowered by a millionth with all else as it is."""
    proof = proof_of(certificate, path)
    for number, line in enumerate(certificate.lines):
        proof.number = number
        found = line.evaluate(proof)
        assert line.stated >= line.least(found)
        if line.bound:
            less = replace(line, bound=line.bound * LESS)
            with suppress(NotProved):
                if less.stated >= less.least(less.evaluate(proof) if _is_norm(line) else found):
                    yield f"line {number}: {line.rule} of {line.subject}"
        line.keep(proof, found)
    yield from _claims(certificate, path, proof)


def _is_norm(line: object) -> bool:
    """Of which the bound itself is what a check proves."""
    return isinstance(line, NormLine | ChainForm)


def _claims(certificate, path, proof):
    model, premises = read_model(path), proof.premises
    random = drops(model, lower(model, *certificate.model.read_outputs))
    known = tensors(model)
    gradients = {name: proof.gradients.get(name, 0.0) for name in certificate.scope.trained}
    sizes = {item.name: math.prod(known[item.tensor].dims) for item in certificate.parameters}

    def is_accepted(claims) -> bool:
        groups = group_bounds(claims, gradients, premises, drops=random)
        return not list(output_faults(claims, proof, groups, sizes, drops=random))

    assert is_accepted(certificate)
    for what, changed in _lowered(certificate):
        if is_accepted(changed):
            yield what
    claim = certificate.privacy
    if claim is not None and claim.status == "recomputed" and premises.run is not None:
        groups = group_bounds(certificate, gradients, premises, drops=random)
        multiplier = joint_multiplier(groups)
        if claim.epsilon * LESS >= derived_epsilon(
            claim, premises.run, multiplier, premises.relation
        ):
            yield "epsilon"


def _lowered(certificate):
    for field in ("parameters", "groups"):
        items = getattr(certificate, field)
        for place, item in enumerate(items):
            for name in ("grad_norm", "sensitivity", "noise_std"):
                if getattr(item, name, 0.0) > 0.0:
                    less = replace(item, **{name: getattr(item, name) * LESS})
                    changed = (*items[:place], less, *items[place + 1 :])
                    yield f"{name} of {item.name}", replace(certificate, **{field: changed})
    network = certificate.network
    for name, factor in (
        ("lipschitz", LESS),
        ("grad_norm", LESS),
        ("sensitivity", LESS),
        ("noise_multiplier", 1.0 / LESS),
    ):
        bound = getattr(network, name)
        if bound:
            less = replace(network, **{name: bound * factor})
            yield f"{name} of the network", replace(certificate, network=less)


def certified(path, settings: Settings = PLAN):
    return certify(load_model(path, trusted=True), settings).certificate


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=() if path.stem in BY_DAY else pytest.mark.nightly)
        for path in SHIPPED
    ],
    ids=lambda path: path.stem,
)
def test_every_number_of_a_shipped_model_is_needed(path):
    certificate = certified(path)
    assert not list(spare(certificate, path))
    assert certificate.privacy is not None


def from_the_zoo():
    """Files of all sizes up to the largest, the same each time."""
    chosen = [row for row in rows() if row["label"] != "out" and row["path"].endswith(".onnx")]
    chosen = [row for row in chosen if int(row["bytes"]) < LARGEST]
    chosen.sort(key=lambda row: (int(row["bytes"]), row["path"]))
    return [ZOO / row["path"] for row in chosen[:: max(1, len(chosen) // (2 * FILES))]]


@pytest.mark.nightly
@needs_zoo
def test_every_number_of_files_of_others_is_needed():
    """Those that can be certified, until there are enough of them."""
    wrong, done = {}, 0
    for path in from_the_zoo():
        try:
            certificate = certified(path)
        except (LipCertError, MemoryError):
            continue
        done += 1
        found = list(spare(certificate, path))
        if found:
            wrong[path.name] = found
        if done == FILES:
            break
    assert not wrong
    assert done == FILES


def test_a_number_with_room_is_found():
    """A bound that is raised can be lowered again; what rests on it cannot."""
    path = next(path for path in SHIPPED if path.stem == "digits_mlp")
    certificate = certified(path)
    place = max(k for k, line in enumerate(certificate.lines) if line.rule == "grad/tensor")
    line = certificate.lines[place]
    raised = replace(line, bound=1.001 * line.bound)
    lines = (*certificate.lines[:place], raised, *certificate.lines[place + 1 :])
    claims = tuple(
        replace(claim, grad_norm=claim.grad_norm * (1.001 if claim.tensor == line.tensor else 1.0))
        for claim in certificate.parameters
    )
    with pytest.raises((AssertionError, NotProved)):
        list(spare(replace(certificate, lines=lines), path))
    network = replace(certificate.network, grad_norm=None, sensitivity=None, noise_multiplier=None)
    groups = tuple(
        replace(group, grad_norm=1.1 * group.grad_norm, sensitivity=1.1 * group.sensitivity)
        for group in certificate.groups
    )
    changed = replace(
        certificate, lines=lines, parameters=claims, network=network, groups=groups, privacy=None
    )
    found = list(spare(changed, path))
    assert f"line {place}: grad/tensor of {line.tensor}" in found
    assert any("grad_norm" in what for what in found)
