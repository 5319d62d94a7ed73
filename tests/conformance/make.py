"""Write models, certificates and expected verdicts anew: `python -m tests.conformance.make`.

Good certificates are those that `certify` issues. Every other one follows from a good one by a
change that makes it say something else than what follows from the model, or nothing at all; its
verdict stands here, or in an entry by hand, and is not asked of the checker.
"""

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any, Final

import onnx

from lipcert.analysis.certificate import certify
from lipcert.core.canonical import write_canonical
from lipcert.core.check import Choices, check
from lipcert.core.digest import structural_digest
from lipcert.core.reader.model import read_model
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.conformance import run
from tests.conformance.networks import GOOD, models

HERE: Final = Path(__file__).parent
SLIGHTLY: Final = 2.0**-20
"""how much a claim is changed, relatively; `certify` claims 2^-24 more than what follows"""

Entry = dict[str, Any]
NORMS: Final = frozenset({"norm/step", "norm/run", "norm/stack"})
"""rules whose numbers are stated as they were found, and proved or not"""
STAGES: Final = {"fact": 4, "ball": 4, "form": 4, "pull": 5, "epsilon": 7}
"""of a check, by the family of a rule or by the claim; all others are in stage 6"""


def main() -> None:
    """Replace everything in the folders, and every entry but those by hand."""
    kept = [entry for entry in run.entries() if entry.get("by_hand")]
    before = {entry["certificate"]: _read(Path(entry["certificate"]).stem) for entry in kept}
    for name in ("models", "certificates"):
        shutil.rmtree(HERE / name, ignore_errors=True)
        (HERE / name).mkdir()
    for name, content in models().items():
        (HERE / f"models/{name}.onnx").write_bytes(content)
    entries: list[Entry] = []
    for name, (model, settings) in GOOD.items():
        path, given = HERE / f"models/{model}.onnx", Settings(**settings)  # type: ignore[arg-type]
        imported = load_model(path, trusted=True, output=given.outputs or None)
        entries += _good(name, model, certify(imported, given).data, "what `certify` issues")
    entries += [*_by_hand(), *_false_weights(), *_other_models(), *_kinds()]
    entries += [*_ill_spelt(), *_hostile()]
    entries += [_followed(entry, before[entry["certificate"]]) for entry in kept]
    names = [entry["name"] for entry in entries]
    assert len(set(names)) == len(names)
    lines = ",\n".join(json.dumps(entry, sort_keys=True) for entry in entries)
    (HERE / "expected.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _followed(entry: run.Entry, before: Any) -> Entry:
    """An entry by hand, with the numbers that its lines and assumptions have now."""
    said, patch = _read(Path(entry["certificate"]).stem), copy.deepcopy(entry["patch"])
    for edit in patch:
        _, member, *rest = edit["path"].split("/")
        if rest and member in {"lines", "assumptions"}:
            place = _names(said[member]).index(_names(before[member])[int(rest[0])])
            edit["path"] = "/".join(["", member, str(place), *rest[1:]])
    return {**entry, "patch": patch}


def _names(items: Any) -> list[tuple[str, int]]:
    """What each line or assumption is about, and how many are about the same before it."""
    texts = [
        str([text for text in item.values() if isinstance(text, str) and text[:2] != "0x"])
        for item in items
    ]
    return [(text, texts[:place].count(text)) for place, text in enumerate(texts)]


def _entry(
    name: str, model: str, certificate: str, verdict: str, stage: int, why: str, **more: object
) -> Entry:
    return {
        "name": name,
        "model": f"models/{model}.onnx",
        "certificate": f"certificates/{certificate}.json",
        "verdict": verdict,
        "stage": stage,
        "why": why,
        **more,
    }


def _good(name: str, model: str, data: bytes, why: str) -> list[Entry]:
    """A certificate that follows, and those that follow from it by a smaller number."""
    (HERE / f"certificates/{name}.json").write_bytes(data)
    said = json.loads(data)
    ids = [item["id"] for item in said["assumptions"]]
    return [
        _entry(name, model, name, "conditional", 9, f"{why}; assumptions are open"),
        _entry(f"{name}, all accepted", model, name, "valid", 9, why, accept=ids),
        *_too_small(name, model, said),
    ]


# claims --------------------------------------------------------------------------------------


def _too_small(name: str, model: str, said: Any):
    """A number by itself a little smaller than what follows from the model; noise claimed larger.

    Each of the perceptron, elsewhere the last of each kind.
    """
    numbers = list(_numbers(said))
    last = {kind: path for kind, path, number in numbers if float.fromhex(number) > 0.0}
    for kind, path, claim in numbers:
        if name != "perceptron" and path != last.get(kind):
            continue
        number, family = float.fromhex(claim), kind.partition("/")[0]
        changed, side = number * (1.0 - SLIGHTLY), "below"
        if kind == "noise_multiplier":
            changed, side = number * (1.0 + SLIGHTLY), "above"
        if kind == "epsilon":
            changed = 0.5 * number
        if number > 0.0:
            yield _entry(
                f"{name}: {path} too {'large' if changed > number else 'small'}",
                model, name, "invalid", STAGES.get(family, 6),
                f"{kind}: {side} what follows", patch=[_put(path, changed.hex())],
            )  # fmt: skip


def _numbers(said: Any):
    """The kind, the place and the spelling of every bound that lines and claims state."""
    for k, line in enumerate(said["lines"]):
        if "bound" in line and line["rule"] not in NORMS:
            kind = " ".join([line["rule"], *([line["step"]] if "step" in line else [])])
            yield kind, f"/lines/{k}/bound", line["bound"]
    outputs = said["outputs"]
    for k, claim in enumerate(outputs["parameters"]):
        yield "grad_norm", f"/outputs/parameters/{k}/grad_norm", claim["grad_norm"]
    for k, claim in enumerate(outputs["groups"]):
        for kind in ("grad_norm", "sensitivity", "noise_std"):
            yield kind, f"/outputs/groups/{k}/{kind}", claim[kind]
    for kind, number in outputs["network"].items():
        yield kind, f"/outputs/network/{kind}", number
    if "privacy" in said:
        yield "epsilon", "/privacy/epsilon", said["privacy"]["epsilon"]


def _false_weights():
    """Of a kernel: by which the steps between are no contraction, or of another number."""
    name = "kernel-weights"
    said = _read(name)
    path = next(f"/lines/{k}/weights" for k, row in enumerate(said["lines"]) if "weights" in row)
    inner, outer = said["lines"][int(path.split("/")[2])]["weights"]
    larger = [(float.fromhex(number) * (1.0 + 2.0 * SLIGHTLY)).hex() for number in outer]
    for what, wrong in (
        ("that stretch", [inner, larger]),
        ("of which one is 0", [[(0.0).hex(), *inner[1:]], outer]),
        ("of which one is missing", [inner[1:], outer]),
        ("in one row", [inner]),
        ("in another order", [outer, inner]),
    ):
        why = f"weights {what}"
        yield _entry(
            f"{name}: {why}", "kernels", name, "invalid", 6, why, patch=[_put(path, wrong)]
        )


def _line(said: Any, rule: str, value: str) -> int:
    """The number of the first line of a rule about a value."""
    lines = enumerate(said["lines"])
    return next(k for k, x in lines if x["rule"] == rule and x.get("value", value) == value)


# statements ----------------------------------------------------------------------------------


def _other_models():
    """The right certificate of another model, and of the same one saved again."""
    why = "it computes other things"
    yield _entry("the model of another", "convolution", "perceptron", "invalid", 1, why)
    again = _onnx("perceptron")
    again.producer_name = "another exporter"
    _saved("saved-again", again)
    why = "the file differs, and not what it computes"
    yield _entry("the same model saved again", "saved-again", "perceptron", "conditional", 9, why)
    first, *rest = again.graph.initializer[0].raw_data
    again.graph.initializer[0].raw_data = bytes([first ^ 1, *rest])
    _saved("one-bit", again)
    why = "a weight differs"
    yield _entry("one bit of a weight", "one-bit", "perceptron", "invalid", 1, why)
    again.graph.node[1].op_type = "Hardmax"
    _saved("unruled", again)
    digest = structural_digest(read_model(HERE / "models/unruled.onnx"))
    yield _entry(
        "an operator without a rule", "unruled", "perceptron", "unknown", 2, "no rule covers it",
        patch=[_put("/model/structure", digest)],
    )  # fmt: skip


def _by_hand():
    """Rules that `certify` has no use for in networks of this size, in places where they hold."""
    said = _read("perceptron")
    form = next(k for k, x in enumerate(said["lines"]) if x.get("stop") == "v1")
    ball, last = _line(said, "ball/input", ""), _line(said, "fact/step", "v2") + 1
    norm = said["lines"][_line(said, "norm/step", "v2")]["bound"]
    for at, line in (
        (last, {"rule": "ball/form", "ball": ball, "form": form}),
        (last + 1, {"rule": "form/chain", "use": "values", "start": "v1", "stop": "v2",
                    "multipliers": [], "bound": norm}),
        (last + 2, {"rule": "fact/ball", "value": "v2", "ball": ball, "form": last + 1}),
    ):  # fmt: skip
        said = _with_line(said, at, line, "perceptron")
    yield from _good("carried", "perceptron", write_canonical(said), "a ball is carried on")
    said = _read("residual")
    untwisted: dict[str, object] = {"twists": [], "counts": []}
    run = {"rule": "norm/run", "values": ["v0", "v1"], "method": "explicit", **untwisted}
    run["bound"] = (1.5).hex()
    said = _with_line(said, _line(said, "fact/input", "x"), run, "residual")
    at = next(
        k for k, x in enumerate(said["lines"])
        if x["rule"].startswith("pull") and x["of"] == "output" and x.get("value") == "x"
    )  # fmt: skip
    said = _with_line(
        said, at, {"rule": "pull/run", "of": "output", "values": run["values"]}, "residual"
    )
    yield from _good("pulled", "residual", write_canonical(said), "a run is pulled through")
    line = {"rule": "pull/signs", "of": "loss", "value": "v0", "stop": "v3"}
    why = "differences of classes are pulled down"
    yield from _added("pulled-signs", "dropout", ("pull/value", "v0"), line, why, behind=0)
    one, two, nothing = (1.0).hex(), (2.0).hex(), (0.0).hex()
    line = {
        "rule": "fact/gain",
        "value": "v3",
        "values": ["v2"],
        "numbers": [[nothing] * 6, [nothing] * 7, [one]],
        "gain": (8.0).hex(),
        "method": "dense",
        **untwisted,
    }
    why = "W is raised to its positive part"
    yield from _added("raised", "images-in-a-box", ("fact/step", "v3"), line, why)
    line = {
        "rule": "fact/window",
        "value": "v4",
        "values": ["v3"],
        "ties": [[one, nothing, nothing, one]],
        "added": [[nothing] * 36],
        "levels": [one],
        "scales": [one, one],
        "shift": (16.0).hex(),
        "gain": (128.0).hex(),
        "method": "windows",
        **untwisted,
    }
    yield from _added(
        "window", "residual", ("fact/step", "v4"), line, "112 is above the norm of H",
        ("gain of a window", (0.0625).hex()), ("ties of a window", [[one] * 3]),
        ("added of a window", [[]]), ("levels of a window", [nothing]),
        ("scales of a window", [one]), ("values of a window", ["v2", "v3"]),
    )  # fmt: skip
    line = {
        "rule": "fact/products",
        "value": "v1",
        "start": "x",
        "level": (16.0).hex(),
        "norms": [(64.0).hex(), nothing],
        "ties": [[two] * 6],
        "places": [1, 11 + 6, 12],
        "cuts": [(0.25).hex(), two, nothing],
    }
    yield from _added(
        "together", "perceptron", ("fact/step", "v1"), line, "64 is above the norm of W²",
        ("level of products", (0.0625).hex()), ("norms of products", [nothing] * 2),
        ("places of products", [0, 0, 10**6]),
    )  # fmt: skip


def _added(
    name: str,
    base: str,
    place: tuple[str, str],
    line: dict[str, Any],
    why: str,
    *wrong: tuple[str, object],
    behind: int = 1,
):
    """With a line more at the one of a rule about a value; wrong: members of which nothing
    follows."""
    said, (model, _) = _read(base), GOOD[base]
    at = _line(said, *place) + behind
    yield from _good(name, model, write_canonical(_with_line(said, at, line, model)), why)
    for title, put in wrong:
        patch = [_put(f"/lines/{at}/{title.split()[0]}", put)]
        yield _entry(title, model, name, "invalid", 4, "nothing follows of it", patch=patch)


def _with_line(said: Any, at: int, line: dict[str, Any], model: str) -> Any:
    """With one line more, which states its own bound, or the least that follows, and some room."""
    for other in said["lines"]:
        for name in ("ball", "form"):
            if other.get(name, -1) >= at:
                other[name] += 1
    said["lines"].insert(at, line)
    if "bound" in line:
        return said
    line["bound"] = (0.0).hex()
    report = check(write_canonical(said), HERE / f"models/{model}.onnx", Choices())
    (found,) = re.findall(rf"line {at} .*claimed, (.*) is derived", report.reasons[0])
    line["bound"] = (float(found) * (1.0 + 2.0**-24)).hex()
    return said


def _kinds():
    """Of every kind of step one line that names it by a version that is not its own."""
    seen: set[str] = set()
    for name, (model, _) in GOOD.items():
        for k, line in enumerate(_read(name)["lines"]):
            kind = line.get("step")
            if kind is not None and kind not in seen:
                seen.add(kind)
                yield _entry(
                    f"another version of {kind}", model, name, "invalid", 4, "another kind of step",
                    patch=[_put(f"/lines/{k}/step", kind.replace("/1", "/2"))],
                )  # fmt: skip


def _put(path: str, value: object) -> dict[str, object]:
    return {"op": "replace", "path": path, "value": value}


# bytes ---------------------------------------------------------------------------------------


def _ill_spelt():
    """The same members in bytes that are not their one spelling."""
    data = (HERE / "certificates/perceptron.json").read_bytes()
    said = json.loads(data)
    bound = said["outputs"]["network"]["grad_norm"]
    quoted = f'"grad_norm":"{bound}"'.encode()
    assert quoted in data
    spellings = {
        "duplicate-key": data[:-1] + b',"schema":"lipcert.certificate/3"}',
        "float-number": data.replace(quoted, f'"grad_norm":{float.fromhex(bound)!r}'.encode()),
        "decimal-number": data.replace(quoted, f'"grad_norm":"{float.fromhex(bound)!r}"'.encode()),
        "short-hexadecimal": data.replace(quoted, b'"grad_norm":"0x1p+20"'),
        "infinite": data.replace(quoted, b'"grad_norm":"inf"'),
        "null": data.replace(quoted, b'"grad_norm":null'),
        "trailing-line": data + b"\n",
        "blanks": json.dumps(said, sort_keys=True).encode(),
        "unsorted": json.dumps(dict(reversed(said.items())), separators=(",", ":")).encode(),
        "byte-order-mark": b"\xef\xbb\xbf" + data,
        "escaped": data.replace(b'"perceptron', b'"\\u0070erceptron').replace(
            b'"schema"', b'"\\u0073chema"'
        ),
        "minus-zero": data.replace(b'"dimension":', b'"dimension":-0,"dimension":', 1),
    }
    yield from _of_bytes(data, spellings, "not its one spelling")


def _of_bytes(data: bytes, all_changed, why: str):
    for name, changed in all_changed.items():
        assert changed != data
        (HERE / f"certificates/{name}.json").write_bytes(changed)
        yield _entry(name, "perceptron", name, "invalid", 0, f"{why}: {name}")


def _hostile():
    """Made to break a reader, to make it wait, or to have it open another file."""
    data = (HERE / "certificates/perceptron.json").read_bytes()
    broken = {
        "empty": b"",
        "truncated": data[: len(data) // 2],
        "nested": b"[" * 2_000,
        "nested-objects": b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
        "huge-integer": data.replace(b'"size":', b'"size":' + b"9" * 5_000, 1),
        "huge-exponent": data.replace(b"0x1.0000000000000p+0", b"0x1.0000000000000p+99999", 1),
        "no-text": bytes(range(256)),
        "half-a-pair": data.replace(b'"lipcert"', b'"\\ud800"', 1),
        "array": b"[]",
    }
    yield from _of_bytes(data, broken, "not a certificate")
    content = (HERE / "models/perceptron.onnx").read_bytes()
    for name, changed in {"cut": content[:-9], "nothing": b"", "noise": bytes(range(256))}.items():
        (HERE / f"models/{name}.onnx").write_bytes(changed)
        why = "the file is not a model"
        yield _entry(f"a model file: {name}", name, "perceptron", "unknown", 1, why)
    yield from _outside()


def _outside():
    """Weights in a file beside the model, behind a link, in another folder, and not there."""
    for name, location, verdict, stage in (
        ("external", "weights.bin", "conditional", 9),
        ("external-link", "link.bin", "unknown", 1),
        ("external-above", "../models/weights.bin", "unknown", 1),
        ("external-absent", "absent.bin", "unknown", 1),
    ):
        model, content = _onnx("perceptron"), b""
        for tensor in model.graph.initializer:
            raw = tensor.raw_data
            place = {"location": location, "offset": len(content), "length": len(raw)}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            content += raw
        _saved(name, model)
        (HERE / "models/weights.bin").write_bytes(content)
        why = "weights stand in a file beside the model"
        why += (verdict == "unknown") * " that is not read"
        yield _entry(f"weights in a file: {name}", name, "perceptron", verdict, stage, why)
    (HERE / "models/link.bin").symlink_to("weights.bin")


def _read(name: str) -> Any:
    return copy.deepcopy(json.loads((HERE / f"certificates/{name}.json").read_bytes()))


def _onnx(name: str) -> onnx.ModelProto:
    return onnx.load(HERE / f"models/{name}.onnx")


def _saved(name: str, model: onnx.ModelProto) -> None:
    (HERE / f"models/{name}.onnx").write_bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
