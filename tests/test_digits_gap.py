"""The digits gap: rows run as they say, and the page shows the rows that there are."""

import re
from dataclasses import replace

import pytest
import torch

from benchmarks.digits_gap.__main__ import PAGE, RESULTS, on_page
from benchmarks.digits_gap.inputs import BINS, CELLS, Inputs, oriented_gradients
from benchmarks.digits_gap.ladder import ROWS, TABLES
from benchmarks.digits_gap.runs import DELTA, EPSILON, trained
from benchmarks.digits_gap.table import short_table, table
from benchmarks.reproductions.page import table_of
from lipcert.training import Clipless, Loss


def images(count: int = 5):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def short(name: str):
    """Two releases of the whole data set."""
    return replace(ROWS[name], batch_size=1437, epochs=2)


@pytest.mark.nightly
@pytest.mark.parametrize("inputs", list(Inputs))
def test_the_vector_of_an_image_follows_from_the_image_alone(inputs: Inputs) -> None:
    together = inputs.of(images())
    assert together.shape == (5, inputs.size)
    for image, vector in zip(images(), together, strict=True):
        torch.testing.assert_close(inputs.of(image[None])[0], vector)
    if inputs is not Inputs.PIXELS:
        torch.testing.assert_close(together.norm(dim=1), torch.ones(5))
        assert inputs.of(torch.zeros(1, 1, 8, 8)).norm() == 0.0


def test_oriented_gradients_turn_with_the_image() -> None:
    """A quarter turn from right to down moves every direction by a quarter of the bins."""
    turned = oriented_gradients(images().rot90(-1, (2, 3)))
    expected = oriented_gradients(images()).rot90(-1, (2, 3)).roll(BINS // 4, 1)
    torch.testing.assert_close(turned, expected)


def test_oriented_gradients_of_an_edge() -> None:
    """Brightness that rises to the right counts in the first bin, in the cells along the edge."""
    edge = torch.zeros(1, 1, 8, 8)
    edge[:, :, :, 4:] = 1.0
    found = oriented_gradients(edge)[0]
    assert found.shape == (BINS, CELLS, CELLS)
    inner = found[:, 1:3, 1:3]  # away from the border, which is an edge, too
    assert (inner[0] > 0.0).all()
    assert inner[0].amin() > 3.0 * inner[1].amax()
    torch.testing.assert_close(inner[1], inner[7])
    torch.testing.assert_close(inner[2:7], torch.zeros(5, 2, 2), atol=1e-6, rtol=0.0)


@pytest.mark.nightly
def test_a_loss_clip_on_a_linear_model_is_per_example_clipping() -> None:
    """Inputs of norm 1: ‖∂ℓ/∂W‖ = ‖∂ℓ/∂z‖, so both rows are one algorithm."""
    ours = trained(short("linear-hog-clip"), 3)
    theirs = trained(short("dp-sgd-linear-hog"), 3)
    weights = [next(run.network.parameters()) for run in (ours, theirs)]
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)
    assert ours.spent == theirs.spent
    assert ours.spent.epsilon <= EPSILON


def test_the_pages_show_every_row_as_it_is() -> None:
    """Recipes, differences and names are those of the rows; every row is within ε."""
    results = on_page(RESULTS)
    assert list(results) == list(ROWS)
    for name, rows in TABLES.items():
        assert table_of(RESULTS, name).splitlines() == list(table(rows, results))
        assert table_of(PAGE, name).splitlines() == list(short_table(rows, results))
    for name, found in results.items():
        assert found.seeds >= 10
        assert (found.spent is None) == isinstance(ROWS[name].mechanism, Loss)
        if found.spent is not None:
            assert 0.99 * EPSILON < found.spent.epsilon <= EPSILON


def test_the_page_names_rows_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:mlp|linear|dp-sgd|plain)-[a-z-]+)`", text))
    assert named == set(ROWS)
    assert f"δ = {DELTA:g}" in text.replace("1e-5", "1e-05")


def test_the_page_shows_the_mechanism_of_the_best_row() -> None:
    (shown,) = re.findall(r"`(Clipless\(.+\))`", PAGE.read_text(encoding="utf-8"))
    row = ROWS["linear-hog-clip"]
    assert eval(shown, {"Clipless": Clipless, "Loss": Loss}) == row.mechanism
    found = on_page(RESULTS)
    ours = [name for name in found if name in {each.name for each in TABLES["clipless"]}]
    assert max(ours, key=lambda name: found[name].accuracy) == row.name
