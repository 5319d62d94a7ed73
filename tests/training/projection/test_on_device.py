"""Proofs on a device, here the processor: the same projections, and nothing false."""

import numpy as np
import pytest
import torch

from lipcert.training.projection import on_device
from lipcert.training.projection import projector as projectors
from lipcert.training.projection.norms import Stack
from tests.networks import trained
from tests.ops import Dense
from tests.training.projection import test_projector as here
from tests.training.projection.networks import floats, graph_of, projector, true_norm


@pytest.fixture(autouse=True, scope="module")
def everywhere():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(projectors, "is_ieee", lambda device: True)
        yield


test_dense_weights = here.test_dense_weights
test_dense_weights_of_all_spectra = here.test_dense_weights_of_all_spectra
test_convolutions = here.test_convolutions
test_convolutions_on_larger_maps_lose_little = here.test_convolutions_on_larger_maps_lose_little
test_a_step_after_another = here.test_a_step_after_another
test_weights_that_leave = here.test_weights_that_were_inside_for_long_and_leave
test_entrywise_constraints = here.test_entrywise_constraints
test_a_view_with_a_gain_may_be_larger = here.test_a_view_with_a_gain_may_be_larger
test_every_use_of_a_parameter_counts = here.test_every_use_of_a_parameter_counts
test_fixed_norms_are_reached_from_both_sides = here.test_fixed_norms_are_reached_from_both_sides
test_zero_weights_stay_zero = here.test_zero_weights_stay_zero
test_norms_are_upper_bounds = here.test_norms_are_upper_bounds_and_change_nothing
test_norms_are_of_the_present_weights = here.test_norms_are_of_the_present_weights
test_numbers_that_are_none_are_named = here.test_numbers_that_are_none_are_named
test_numbers_beyond_all_measure = here.test_numbers_beyond_all_measure_are_refused
test_huge_weights_are_brought_back = here.test_huge_weights_are_brought_back
test_a_checkpoint_helps = here.test_a_checkpoint_helps_after_numbers_that_are_none


@pytest.mark.parametrize("fails", [False, True])
def test_the_processor_guesses_on(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is asked only then, or at first."""
    asked: list[int] = []
    own = Stack.bounds

    def counted(self: Stack, numbers, *, tight: bool):
        asked.append(1)
        return own(self, numbers, tight=tight)

    monkeypatch.setattr(Stack, "bounds", counted)
    if fails:
        monkeypatch.setattr(on_device, "below", lambda stack, shifts: shifts < 0.0)
    weights = {"w": floats(here.draw((40, 50)))}
    graph = graph_of((50,), Dense(trained("w", np.ones((40, 50)))))
    projection = projector(graph, weights)
    for _ in range(6):
        weights["w"].mul_(1.01)
        projection.project()
        assert 0.998 <= true_norm(graph, weights) <= here.INSIDE
    assert len(asked) == 6 if fails else len(asked) <= 1


def test_emulated_float64_is_not_what_the_proofs_suppose(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_device.is_ieee(torch.device("cuda"))
    assert not on_device.is_ieee(torch.device("cpu"))
    monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", "1")
    assert not on_device.is_ieee(torch.device("cuda"))
