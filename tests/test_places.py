"""What belongs together is there together: a place that was forgotten is named by one of these."""

from __future__ import annotations

from dataclasses import fields

import mpmath
import numpy as np
import pytest

from lipcert.audit.attack.label_sets import label_set
from lipcert.audit.losses import _loss
from lipcert.core.losses.base import loss_class, parameters_of
from lipcert.core.losses.kinds import KINDS
from lipcert.core.lower.operators import DATA, LAYOUT, TABLES, loaded
from lipcert.core.rules.facts import Fact
from lipcert.core.rules.functions import FUNCTIONS
from lipcert.evaluate import function_of
from lipcert.importer.batch import _RULES as BATCH
from lipcert.importer.build.translate import _HANDLERS
from lipcert.importer.opsets import _VERSIONS
from lipcert.losses import make_loss
from lipcert.settings import LossParameters
from tests.core.rules.test_functions import EVERY, POSITIVE

WRITTEN_IN_OTHERS = {
    "Attention", "Einsum", "GatherND", "LpNormalization", "MeanVarianceNormalization"
}  # fmt: skip
"""operators that the importer writes down in others before it looks at the batch"""


def loss(kind):
    return make_loss(kind, label_norm=1.0) if kind == "mse" else make_loss(kind)


def test_every_function_has_an_oracle() -> None:
    assert {name for name, _ in EVERY} == FUNCTIONS.keys()


@pytest.mark.parametrize("case", EVERY, ids=str)
def test_the_numbers_of_every_function_are_those_of_its_oracle(case) -> None:
    points = np.array([0.125, 1.0, 2.5] if case in POSITIVE else [-2.5, -1.0, 0.0, 0.125, 2.5])
    expected = [float(EVERY[case](mpmath.mpf(x))) for x in points]
    np.testing.assert_allclose(function_of(*case, points), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_every_loss_is_one_class(kind: str) -> None:
    assert loss_class(kind).kind == kind


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


def test_every_operator_that_imports_is_read_by_the_core() -> None:
    read = [DATA.keys(), LAYOUT.keys(), *(loaded(name).keys() for name in TABLES)]
    assert _VERSIONS.keys() <= set().union(*read)
    assert sum(map(len, read)) == len(set().union(*read))


def test_every_operator_that_imports_has_a_batch_and_a_translation() -> None:
    assert _VERSIONS.keys() - WRITTEN_IN_OTHERS <= BATCH.keys() & _HANDLERS.keys()
