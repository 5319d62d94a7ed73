"""Mutants of sound models: imported or refused, never another exception."""

import pytest

from lipcert.importer.load import load_model
from tests.hostile.mutations import SEEDS, attempt


@pytest.mark.parametrize("index", range(len(SEEDS)))
def test_the_seeds_are_sound(tmp_path, index):
    path = tmp_path / "model.onnx"
    path.write_bytes(SEEDS[index])
    load_model(path)


def test_mutants(tmp_path):
    outcomes = {attempt(seed, tmp_path / "model.onnx", trusted=True) for seed in range(400)}
    assert "imported" in outcomes
    assert len(outcomes) > 5
