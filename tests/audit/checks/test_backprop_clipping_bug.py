"""The published sensitivity βC/B, found from one step of the example; βC passes."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from lipcert.audit.records import Verdict
from tests.audit.checks.runs import bad, only

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "backprop_clipping_bug.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")
def test_the_published_sensitivity_and_the_corrected_one(tmp_path: Path) -> None:
    module = example()
    path = tmp_path / "model.onnx"
    network = module.exported(path)
    bug = module.audited(network, path, tmp_path / "bug", divided=True)
    assert bad(bug) == {("LC311", "schedule"), ("LC312", "contribution")}
    noise = only(bug, "schedule")
    assert noise.measured == pytest.approx(module.SIGMA / module.B, rel=1e-6)
    against_noise, against_claim = [r for r in bug.reports if r.name == "contribution"]
    assert against_noise.verdict is against_claim.verdict is Verdict.VIOLATION
    assert against_claim.measured > 100.0 * against_claim.expected
    assert against_noise.measured > 100.0 * against_noise.expected
    assert bad(module.audited(network, path, tmp_path / "right", divided=False)) == set()
