"""What `lipcert inspect` says of exports as people make them, and that its line does without."""

import json
import warnings

import onnx
import pytest
import torch
from torch import nn

import lipcert as package
from lipcert.errors import UnsupportedModelError
from lipcert.importer.load import load_model
from lipcert.importer.model import outline_of
from lipcert.report.inspection import (
    inspection_json,
    inspection_of,
    refused_inspection,
)
from tests.commands import lipcert
from tests.zoo import ZOO, needs_zoo, rows

X = torch.zeros(1, 1, 5, 5)
DYNAMIC = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}


def module() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(18, 3))


def _by_torch(path, network: nn.Module, examples: int, **options) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, options = torch.zeros(examples, 1, 5, 5), {"external_data": False, **options}
        torch.onnx.export(network, (x,), path, verbose=False, **options)


def training(path) -> None:
    _by_torch(path, module().train(), 2, optimize=False, **DYNAMIC)


def one_example_optimised(path) -> None:
    _by_torch(path, module().eval(), 1)


def three_examples(path) -> None:
    _by_torch(path, nn.Conv2d(1, 2, 3), 3, optimize=False)


def torchscript(path) -> None:
    _by_torch(path, module().eval(), 2, dynamo=False, dynamic_axes={"input": {0: "n"}},
              input_names=["input"])  # fmt: skip


def without_its_data(path) -> None:
    proto = onnx.load(package.export(module(), X, path))
    onnx.save(proto, path, save_as_external_data=True, location="data", size_threshold=0)
    (path.parent / "data").unlink()


def well(path) -> None:
    package.export(module(), X, path)


def advice_of(path):
    try:
        return inspection_of(load_model(path, trusted=True)).export
    except UnsupportedModelError as error:
        return refused_inspection(str(path), error, outline_of(path)).export


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("export", "codes"),
    [
        (training, {"LC011"}),
        (one_example_optimised, {"LC009", "LC021"}),
        (three_examples, {"LC022"}),
        (torchscript, {"LC009", "LC023", ""}),
        (without_its_data, {"LC015"}),
        (well, set()),
    ],
)
def test_an_export_is_told_what_it_lost(export, codes: set[str], tmp_path) -> None:
    path = tmp_path / "a net.onnx"
    export(path)
    found = advice_of(path)
    if not codes:
        assert found is None
        return
    assert {item.code for item in found.mistakes} == codes
    assert found.again == 'lipcert.export(module, x[:1], "a net.onnx")'


@pytest.mark.nightly
def test_the_line_can_be_pasted(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in the text and in JSON, and what it writes needs no advice."""
    path = tmp_path / "net.onnx"
    one_example_optimised(path)
    shown = lipcert(["inspect", str(path)]).stdout
    told = json.loads(lipcert(["inspect", str(path), "--format", "json"]).stdout)["export"]
    assert shown.index("\nExport\n") < shown.index("\n  parameter ")
    assert {item["code"] for item in told["mistakes"]} == {"LC009", "LC021"}
    assert f"\n{told['again']}\n" in shown
    monkeypatch.chdir(tmp_path)
    exec(told["again"], {"lipcert": package, "x": X, "module": module()})
    assert advice_of(path) is None


def test_other_programs_get_no_advice_about_torch(tmp_path) -> None:
    path = tmp_path / "net.onnx"
    three_examples(path)
    proto = onnx.load(path)
    proto.producer_name = "tf2onnx"
    onnx.save(proto, path)
    found = inspection_of(load_model(path, trusted=True))
    assert {item.code for item in found.diagnostics} == {"LC022"}
    assert found.export is None
    assert "export" not in json.loads(inspection_json(found))


@needs_zoo
def test_exports_of_a_survey() -> None:
    """Of each spelling of torch's exporters: nothing is said exactly where nothing was lost."""
    exported = [row["path"] for row in rows() if row["kind"].startswith("torch 2.13 export:")]
    found = {path.split("/")[1].removesuffix(".onnx"): ZOO / path for path in exported}
    told = {
        name: advice_of(path)
        for name, path in found.items()
        if name.startswith(("cnn", "resnet", "mlp."))
    }
    kept = {name for name, advice in told.items() if advice is None}
    assert kept >= {name for name in told if name.endswith("dynamo_dyn_noopt")}
    for name, advice in told.items():
        codes = set() if advice is None else {item.code for item in advice.mistakes}
        assert ("LC011" in codes) == (
            "TRAINMODE" in name or name in {"cnn.legacy_preserve", "resnet.legacy_preserve"}
        )
        assert ("" in codes) == ("legacy" in name)
        if name.startswith(("cnn.", "resnet.")) and "noopt" not in name:
            assert codes & {"LC009", "LC011"}, name  # its batch normalisation is gone
