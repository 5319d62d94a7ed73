"""What belongs together is there together: a place that was forgotten is named by one of these."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import mpmath
import numpy as np
import pytest

import lipcert
from lipcert import training
from lipcert.core.ledger.mechanism import MECHANISMS, names_of
from lipcert.core.losses import KINDS
from lipcert.core.losses.base import loss_class, parameters_of
from lipcert.core.rules import FUNCTIONS
from lipcert.gradient_stats.labels import label_set
from lipcert.graph.evaluate import function_of
from lipcert.losses import make_loss
from lipcert.measure.losses import _loss
from lipcert.measure.lowering.functions import FUNCTIONS as IN_TORCH
from lipcert.settings.settings import LossParameters, Settings
from tests.core.rules.test_activations import EVERY, POSITIVE


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


@pytest.mark.parametrize("kind", KINDS)
def test_every_loss_is_one_class(kind: str) -> None:
    assert KINDS.name_of(loss_class(kind)) == kind


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
    assert label_set(found, (3,), 1.0).drawn(2, np.random.default_rng(0)) is not None


NAMES = "|".join(sorted(MECHANISMS.keys() - {"none"}))
CLASSES = "|".join(found.__name__ for found in MECHANISMS.values())
SAID = rf"(?:\"(?:{NAMES})\"|\b(?:{CLASSES})\.kind\b)"
COMPARED = re.compile(
    rf"(?:[!=]= *|\bin *[\[({{][^\])}}]*|\bcase ){SAID}|{SAID} *[!=]=|mechanism *[!=]= *\"none\""
)
"""a comparison, `match` included, with the name of a mechanism, or with `kind` of its class"""


@pytest.mark.parametrize(
    "source",
    [
        'settings.mechanism == "gradient-clipping"',
        'settings.mechanism != "none"',
        'kind in {"clipless", "none"}',
        "settings.mechanism == GradientClipping.kind",
        'match kind:\n    case "weight-clipping": pass',
    ],
)
def test_a_comparison_with_a_name_of_a_mechanism_is_found(source: str) -> None:
    assert COMPARED.search(source)


def test_only_its_class_knows_what_a_mechanism_does() -> None:
    """Everybody else asks the class: a new mechanism is told nowhere else by its name."""
    known = Path(lipcert.__file__).parent
    found = {
        path.relative_to(known).as_posix(): said
        for path in known.rglob("*.py")
        if path.relative_to(known).as_posix() != "core/ledger/mechanism.py"
        and (said := COMPARED.findall(path.read_text("utf-8")))
    }
    assert not found


SPELT_IN_A_WAY_OF_THEIR_OWN = {"input_norm", "input_box", "sampling_rate"}
RESOLVED = {"scope", "reduction"}
"""whose "auto" `lipcert config show` says the source of"""


def test_an_option_has_two_places() -> None:
    """Its declaration in `Settings`, and what acts on it: what reads, shows and explains options
    asks the declaration and names none, but those that text spells in a way of their own."""
    known = Path(lipcert.__file__).parent / "cli"
    named = {
        name: {
            node.value.replace("-", "_")
            for node in ast.walk(ast.parse((known / name).read_text("utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        & {item.name for item in fields(Settings)}
        for name in ("documents.py", "options.py", "sources.py")
    }
    assert named["sources.py"] == SPELT_IN_A_WAY_OF_THEIR_OWN | RESOLVED
    assert named["documents.py"] <= {"steps"}  # that a trace has
    assert not named["options.py"]
