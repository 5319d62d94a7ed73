"""What belongs together is there together: a place that was forgotten is named by one of these."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import mpmath
import numpy as np
import pytest

import lipcert
from lipcert import training
from lipcert.audit.attack.domain import label_set
from lipcert.audit.losses import _loss
from lipcert.audit.lowering.functions import FUNCTIONS as IN_TORCH
from lipcert.core.ledger.mechanism import MECHANISMS, names_of
from lipcert.core.losses.base import loss_class, parameters_of
from lipcert.core.losses.kinds import KINDS
from lipcert.core.lower.operators import DATA, LAYOUT, TABLES, loaded
from lipcert.core.rules.facts import Fact
from lipcert.core.rules.functions import FUNCTIONS
from lipcert.graph.evaluate import function_of
from lipcert.losses import make_loss
from lipcert.settings.settings import LossParameters, Settings
from tests.core.rules.test_functions import EVERY, POSITIVE

ASSUMED = {"bce", "cross-entropy", "nll"}
"""losses that analyses assume where nobody states one"""


def loss(kind):
    return make_loss(kind, label_norm=1.0) if kind == "mse" else make_loss(kind)


def test_every_function_has_an_oracle() -> None:
    assert {name for name, _ in EVERY} == FUNCTIONS.keys()


@pytest.mark.parametrize("case", EVERY, ids=str)
def test_the_numbers_of_every_function_are_those_of_its_oracle(case) -> None:
    points = np.array([0.125, 1.0, 2.5] if case in POSITIVE else [-2.5, -1.0, 0.0, 0.125, 2.5])
    expected = [float(EVERY[case](mpmath.mpf(x))) for x in points]
    np.testing.assert_allclose(function_of(*case, points), expected, rtol=1e-12, atol=1e-15)


def test_every_function_is_there_in_torch() -> None:
    assert IN_TORCH.keys() == FUNCTIONS.keys()


def places(*words: str) -> set[str]:
    """The files of the package that say one of these."""
    known, says = Path(lipcert.__file__).parent, re.compile("|".join(words))
    files = (path for path in known.rglob("*.py") if says.search(path.read_text("utf-8")))
    return {path.relative_to(known).as_posix() for path in files}


@pytest.mark.parametrize("kind", KINDS)
def test_every_loss_is_one_class(kind: str) -> None:
    assert loss_class(kind).kind == kind


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - ASSUMED))
def test_a_loss_has_three_places(kind: str) -> None:
    """Its class, its row and the loss in torch; some have a use, or other names, of their own."""
    module, _, name = KINDS[kind].partition(".")
    own = {f"core/losses/{module}.py", "core/losses/kinds.py", "audit/losses.py"}
    found = places(f'"{kind}"', rf"\b{name}\b(?! loss)")
    assert (
        own
        <= found
        <= own | {"settings/choices.py", "losses.py", "settings/loss_spec.py", "search/chains.py"}
    )


def test_a_mechanism_has_few_places() -> None:
    """Its declaration, what users of training write, what enforces it, and the weights that it
    leaves, at which gradients are measured."""
    assert places('"fixed-weight-norm"', r"\bFixedWeightNorm\b") == {
        "analysis/observing.py",
        "core/ledger/mechanism.py",
        "training/__init__.py",
        "training/mechanisms.py",
        "training/projection/projector.py",
    }


@pytest.mark.parametrize("kind", MECHANISMS)
def test_every_mechanism_is_set_and_trained(kind: str) -> None:
    settings = {item.name for item in fields(Settings)}
    assert names_of(MECHANISMS[kind]).keys() <= settings
    public = {found.kind: found for found in map(vars(training).get, training.__all__)
              if isinstance(found, type) and issubclass(found, training.TrainingMechanism)
              and found is not training.TrainingMechanism}  # fmt: skip
    assert public.keys() == MECHANISMS.keys() - {"none"}
    if kind != "none":
        assert names_of(MECHANISMS[kind]).keys() <= {item.name for item in fields(public[kind])}


def test_every_parameter_of_a_loss_is_a_setting() -> None:
    every = set().union(*map(parameters_of, KINDS))
    assert every == {item.name for item in fields(LossParameters)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_loss_can_be_audited(kind: str) -> None:
    """In torch, and with labels to try."""
    found = loss(kind)
    assert _loss.dispatch(type(found)) is not _loss.dispatch(object)
    assert label_set(found, (3,), Fact.of((3,), 1.0)).drawn(2, np.random.default_rng(0)) is not None


@pytest.mark.parametrize("name", sorted({*LAYOUT.values(), *DATA.values(), *TABLES}))
def test_every_reader_of_an_operator_can_be_loaded(name: str) -> None:
    assert loaded(name)


def test_every_operator_is_read_in_one_way() -> None:
    read = [DATA.keys(), LAYOUT.keys(), *(loaded(name).keys() for name in TABLES)]
    assert sum(map(len, read)) == len(set().union(*read))
