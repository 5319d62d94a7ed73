"""The cache answers what would be computed, or nothing: a stale or forged norm is a wrong bound."""

import ast
import os
import stat
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert import norm_cache, norm_sources
from lipcert.analysis.pipeline import analyze
from lipcert.facts import Bound, no_bound
from lipcert.importer.load import load_model
from lipcert.norm_cache import NormCache
from lipcert.norm_sources import rule_sources, rules_digest
from lipcert.geometry import Window
from lipcert.norms.linear_map import ConvMap, DenseMap, LinearMap
from lipcert.norms.operator_norm import Tier, operator_norm
from lipcert.operand import Operand
from lipcert.settings import Settings

ROOT = Path(__file__).parents[1]
RNG = np.random.default_rng(7)
WEIGHT = RNG.normal(size=(4, 4, 3, 3))
WINDOW = Window(size=6, taps=3, pad_begin=1, pad_end=1)
CONV = ConvMap(Operand(WEIGHT), (WINDOW, WINDOW))
DENSE = DenseMap(Operand(RNG.normal(size=(5, 7))))


class Counted:
    """A rule that counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, linear_map: LinearMap, tier: Tier) -> Bound:
        self.calls += 1
        return operator_norm(linear_map, tier)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def eager(folder: Path, rule: Counted | None = None) -> NormCache:
    """A cache that keeps every norm, however fast."""
    return NormCache(folder, rules_digest(), rule or Counted(), slow_seconds=0.0)


def entry(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


@pytest.mark.parametrize("linear_map", [CONV, DENSE])
@pytest.mark.parametrize("tier", Tier)
def test_a_hit_is_what_would_be_computed(folder: Path, linear_map: LinearMap, tier: Tier) -> None:
    first = eager(folder)(linear_map, tier)
    rule = Counted()
    second = eager(folder, rule)
    assert second(linear_map, tier) == first == operator_norm(linear_map, tier)
    assert (rule.calls, second.hits, second.complaint) == (0, 1, "")


def test_witnesses_are_not_remembered(folder: Path) -> None:
    """Who needs one computes without a cache."""
    geometry = (Window(size=30, taps=3, pad_begin=1, pad_end=1),) * 2
    searched = ConvMap(Operand(RNG.normal(size=(8, 8, 3, 3))), geometry)
    computed = eager(folder)(searched, Tier.FAST)
    remembered = eager(folder)(searched, Tier.FAST)
    assert computed.witness is not None
    assert remembered.witness is None
    assert remembered == computed


def test_another_map_is_another_entry(folder: Path) -> None:
    changed = WEIGHT.copy()
    changed[0, 0, 0, 0] = np.nextafter(changed[0, 0, 0, 0], 1.0)
    flat = DenseMap(Operand(WEIGHT.reshape(4, 36)))
    maps = [
        CONV,
        ConvMap(Operand(changed), CONV.geometry),
        ConvMap(CONV.weight, (WINDOW, replace(WINDOW, size=7))),
        ConvMap(CONV.weight, (WINDOW, replace(WINDOW, pad_end=0))),
        ConvMap(CONV.weight, (WINDOW, replace(WINDOW, stride=2))),
        ConvMap(CONV.weight, (replace(WINDOW, dilation=2), WINDOW)),
        ConvMap(CONV.weight, CONV.geometry, groups=2),
        flat,
        DenseMap(Operand(WEIGHT.reshape(36, 4))),
    ]
    rule = Counted()
    cache = eager(folder, rule)
    for linear_map in maps:
        for tier in (Tier.QUICK, Tier.FAST):
            cache(linear_map, tier)
    assert rule.calls == len(list(folder.iterdir())) == 2 * len(maps)
    assert cache.hits == 0


def test_changed_rules_empty_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eager(folder)(CONV, Tier.FAST)
    monkeypatch.setattr(norm_sources, "rule_sources", lambda: rule_sources()[1:])
    rule = Counted()
    eager(folder, rule)(CONV, Tier.FAST)
    assert rule.calls == 1


def test_rules_that_change_while_a_norm_is_certified_keep_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = eager(folder)
    monkeypatch.setattr(norm_sources, "rule_sources", lambda: rule_sources()[1:])
    cache(CONV, Tier.FAST)
    assert list(folder.iterdir()) == []


def test_without_sources_there_is_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm_sources, "rule_sources", lambda: (ROOT / "lipcert" / "no.py",))
    assert rules_digest() == ""


def test_the_digest_covers_all_that_norms_stand_on() -> None:
    """What the modules of norms import of LipCert, directly or not, is among the sources."""
    names = {
        ".".join(source.relative_to(ROOT).with_suffix("").parts) for source in rule_sources()
    } - {"lipcert.norms.__init__"}
    for source in rule_sources():
        for statement in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(statement, ast.ImportFrom) and statement.module:
                module = statement.module
                assert not module.startswith("lipcert") or module in names, (source, module)


def test_fast_norms_never_touch_the_disk(folder: Path) -> None:
    NormCache(folder, rules_digest(), operator_norm, slow_seconds=60.0)(CONV, Tier.FAST)
    assert not folder.exists()


def test_an_absent_bound_is_not_kept(folder: Path) -> None:
    def unbounded(linear_map: LinearMap, tier: Tier) -> Bound:
        return no_bound("norms.dense", "a reason")

    cache = NormCache(folder, rules_digest(), unbounded, slow_seconds=0.0)
    assert not cache(DENSE, Tier.FAST).is_finite
    assert not folder.exists()


def test_a_private_directory_is_made(folder: Path) -> None:
    eager(folder)(CONV, Tier.FAST)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry(folder).stat().st_mode) == 0o600


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_every_damaged_entry_is_computed_again(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    true = eager(folder)(DENSE, Tier.FAST)
    file = entry(folder)
    whole = file.read_bytes()
    kind = data.draw(st.sampled_from(["cut", "flip", "insert", "garbage"]))
    at = data.draw(st.integers(0, len(whole) - 1))
    if kind == "cut":
        damaged = whole[:at]
    elif kind == "flip":
        damaged = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    elif kind == "insert":
        damaged = whole[:at] + data.draw(st.binary(min_size=1, max_size=4)) + whole[at:]
    else:
        damaged = data.draw(st.binary(max_size=300))
    if damaged == whole:
        return
    file.write_bytes(damaged)
    rule = Counted()
    again = eager(folder, rule)
    assert again(DENSE, Tier.FAST) == true
    assert (rule.calls, again.hits) == (1, 0)
    assert file.read_bytes() == whole


@pytest.mark.parametrize("value", ["0x0.0p+0", "-0x1p+0", "inf", "nan", "0x1p+99999", "3.0", ""])
def test_a_value_without_its_checksum_is_not_believed(folder: Path, value: str) -> None:
    true = eager(folder)(DENSE, Tier.FAST)
    file = entry(folder)
    words = file.read_text().split()
    words[-2] = value
    file.write_text(" ".join(words) + "\n")
    assert eager(folder)(DENSE, Tier.FAST) == true


def test_an_entry_under_another_key_is_not_believed(folder: Path) -> None:
    small = DenseMap(Operand(np.eye(3) * 1e-3))
    eager(folder)(small, Tier.FAST)
    forged = entry(folder).read_bytes()
    entry(folder).unlink()
    true = eager(folder)(DENSE, Tier.FAST)
    entry(folder).write_bytes(forged)
    assert eager(folder)(DENSE, Tier.FAST) == true


def test_an_entry_that_is_a_directory_is_harmless(folder: Path) -> None:
    true = eager(folder)(DENSE, Tier.FAST)
    file = entry(folder)
    file.unlink()
    file.mkdir()
    assert eager(folder)(DENSE, Tier.FAST) == true


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_directory_others_can_write_is_not_used(folder: Path, mode: int) -> None:
    eager(folder)(DENSE, Tier.FAST)
    entry(folder).write_text("untouched")
    folder.chmod(mode)
    rule = Counted()
    cache = eager(folder, rule)
    cache(DENSE, Tier.FAST)
    assert (rule.calls, cache.hits) == (1, 0)
    assert "others may write" in cache.complaint
    assert entry(folder).read_text() == "untouched"


def test_a_directory_of_somebody_else_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager(folder)(DENSE, Tier.FAST)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    cache = eager(folder)
    cache(DENSE, Tier.FAST)
    assert (cache.hits, cache.complaint) == (0, "it belongs to another user")


def test_a_file_in_place_of_the_directory_is_harmless(folder: Path) -> None:
    folder.write_text("not a directory")
    cache = eager(folder)
    assert cache(DENSE, Tier.FAST) == operator_norm(DENSE, Tier.FAST)
    assert cache.complaint == "it is not a directory"


def test_a_directory_that_cannot_be_written_is_harmless(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(mode=0o500)
    monkeypatch.setattr(norm_cache.tempfile, "mkstemp", _denied)  # root may write anywhere
    cache = eager(folder)
    assert cache(DENSE, Tier.FAST) == operator_norm(DENSE, Tier.FAST)
    assert list(folder.iterdir()) == []
    assert eager(Path("/proc/no/such"))(DENSE, Tier.FAST).is_finite


def _denied(*args: object, **options: object) -> None:
    raise PermissionError


def test_an_interrupted_write_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        eager(folder)(DENSE, Tier.FAST)
    assert list(folder.iterdir()) == []


def _certified(folder: Path) -> str:
    return eager(folder)(CONV, Tier.FAST).value.value.hex()


def test_processes_may_share_the_directory(folder: Path) -> None:
    with ProcessPoolExecutor(2) as pool:
        answers = set(pool.map(_certified, [folder] * 8))
    assert answers == {operator_norm(CONV, Tier.FAST).value.value.hex()}
    assert len(list(folder.iterdir())) == 1


def test_a_whole_analysis_is_the_same_with_and_without(folder: Path) -> None:
    model = load_model(ROOT / "models" / "digits_cnn.onnx")
    plain = analyze(model, Settings())
    filled = analyze(model, Settings(), certify=eager(folder))
    rule = Counted()
    again = analyze(model, Settings(), certify=eager(folder, rule))
    assert plain == filled == again
    assert rule.calls == 0


def test_a_library_call_uses_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIPCERT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(NormCache, "__call__", _denied)
    analyze(load_model(ROOT / "models" / "digits_mlp.onnx"), Settings(cache=True))
