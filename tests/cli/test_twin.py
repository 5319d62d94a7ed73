"""`lipcert audit --twin`: exit codes, formats, progress, and what is refused."""

import json
import sys
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest

from tests.commands import lipcert

SCRIPT = """
import secrets
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from lipcert.training import GradientClipping, make_private


def run(data, rate=0.1):
    dataset = data if isinstance(data, Dataset) else TensorDataset(*data)
    print("training on", len(dataset))
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with make_private(
        model, optimizer, DataLoader(dataset, batch_size=16),
        GradientClipping(clip_norm=1.0), noise_multiplier=1.0, delta=1e-5, steps=4,
        dataset_size=64, sampling="balls-in-bins", folder="run",
    ) as private:
        for x, y in private.loader:
            optimizer.zero_grad()
            private.criterion(model(x), y).backward()
            optimizer.step()
    return model


def counting(data):
    return run(data, 6 / len(data[0]))


def random(data):
    return run(data), secrets.randbits(64)


def failing(data):
    run(data)
    return data[2]


def loader():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, torch.arange(64) % 3), batch_size=16)


NUMBER = 3
"""


@pytest.fixture(name="folder")
def _folder(tmp_path):
    (tmp_path / "loop_of_twins.py").write_text(SCRIPT, encoding="utf-8")
    draws = np.random.default_rng(0)
    x = draws.normal(size=(64, 6)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=draws.integers(3, size=64))
    yield tmp_path
    sys.modules.pop("loop_of_twins", None)


def audit(folder, function: str, *words: str, data: str = "data.npz"):
    place = f"loop_of_twins.py:{function}"
    return lipcert(["audit", "--twin", place, "--data", data, *words], folder)


def test_a_right_run_passes_and_leaves_no_folder(folder) -> None:
    done = audit(folder, "run", "--twin-count", "1", "--format", "json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["verdict"], found["difference"], found["steps"]) == ("pass", None, 4)
    assert [item["with_example"] for item in found["compared"]] == [1, None]
    assert "training on 63" in done.stderr
    assert not (folder / "run").exists()


def test_data_of_a_function_are_a_data_set(folder) -> None:
    words = ("--twin-example", "5", "--twin-example", "-1", "--neighbours", "replace-one")
    done = audit(folder, "run", *words, data="loop_of_twins.py:loader")
    assert done.exit_code == 0, done.output
    assert "with another example in the place of any one of 2" in done.stdout
    assert "number = 63" in done.stdout


def test_a_difference_is_a_violation_in_every_format(folder) -> None:
    reports = {name: folder / f"report.{name}" for name in ("json", "junit", "sarif", "markdown")}
    further = [f"--report={name}={path}" for name, path in reports.items()]
    words = ("--twin-count", "1", "--no-twin-far", "--twin-seed", "7")
    done = audit(folder, "counting", *words, *further)
    assert done.exit_code == 1, done.output
    says = "the learning rate of the optimizer is 0.09523809523809523, and was 0.09375 in the first"
    assert says in " ".join(done.stdout.split())
    found = json.loads(reports["json"].read_text(encoding="utf-8"))
    assert (found["verdict"], found["seed"], found["difference"]["step"]) == ("violation", 7, 0)
    assert says in found["difference"]["what"]
    suite = fromstring(reports["junit"].read_text(encoding="utf-8"))
    assert suite.attrib["failures"] == "2"
    (result,) = json.loads(reports["sarif"].read_text(encoding="utf-8"))["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("LC322", "error")
    assert says in reports["markdown"].read_text(encoding="utf-8")


def test_a_function_that_is_random_decides_nothing(folder) -> None:
    done = audit(folder, "random", "--twin-count", "1", "--no-twin-far")
    assert done.exit_code == 3, done.output
    assert "two runs on the same data differ, too, at the end: what is returned[1] differs" in (
        " ".join(done.stdout.split())
    )


def test_what_is_refused(folder) -> None:
    failed = audit(folder, "failing")
    assert failed.exit_code == 3
    assert "failed at loop_of_twins.py:" in failed.stderr
    assert audit(folder, "nothing").exit_code == 3
    assert "is not a function" in audit(folder, "NUMBER").stderr
    for words, why in {
        ("--attack", "pga"): "--attack needs TARGET",
        ("--loss", "cross-entropy"): "--loss needs TARGET",
        ("--twin-example", "64"): "there is no example 64 among 64",
    }.items():
        done = audit(folder, "run", *words)
        assert (done.exit_code, why in done.stderr) == (2, True), done.stderr
    for words, why in {
        ("--twin", "loop_of_twins.py:run"): "--twin needs --data",
        ("model.onnx", "--twin-count", "3"): "need --twin",
    }.items():
        done = lipcert(["audit", *words], folder)
        assert (done.exit_code, why in done.stderr) == (2, True), done.stderr
