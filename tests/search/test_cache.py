"""The cache of proposals: whatever stands in it, no bound becomes smaller than without it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.certificate import NormClaim, ScopeClaim
from lipcert.core.interval import Interval
from lipcert.core.lower.lower import lower
from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.steps import Kernel
from lipcert.core.reader.model import read_model
from lipcert.search.cache import ProposalCache
from lipcert.search.norms import find_norms
from lipcert.search.proposals import proposals
from tests.core.norms.convolutions import window_of

MODEL = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"
POINT = ScopeClaim("point", (), ())
RNG = np.random.default_rng(7)
WINDOW = window_of((3, 3), (6, 6), before=(1, 1), after=(1, 1))
CONV = Convolution(RNG.normal(size=(4, 4, 3, 3)), (6, 6), WINDOW)


def kernel_of(conv):
    return Kernel(Interval(conv.kernel, conv.kernel), conv, False)


class Counted:
    """A search that counts how often it is asked."""

    def __init__(self):
        self.calls = 0

    def __call__(self, kernel, tier):
        self.calls += 1
        return proposals(kernel, tier)


@pytest.fixture(name="folder")
def _folder(tmp_path):
    return tmp_path / "cache"


def eager(folder, search=None):
    """A cache that keeps all proposals, however fast."""
    return ProposalCache(folder, search or Counted(), slow_seconds=0.0)


def entry(folder):
    (file,) = folder.iterdir()
    return file


@pytest.mark.parametrize("tier", ["quick", "fast", "tight"])
def test_a_hit_is_what_would_be_found(folder, tier):
    first = eager(folder)(kernel_of(CONV), tier)
    search = Counted()
    second = eager(folder, search)
    assert second(kernel_of(CONV), tier) == first == proposals(kernel_of(CONV), tier)
    assert (search.calls, second.hits, second.complaint) == (0, 1, "")


def test_another_map_is_another_entry(folder):
    other = CONV.kernel.copy()
    other[0, 0, 0, 0] = np.nextafter(other[0, 0, 0, 0], 1.0)
    line = np.arange(6, dtype=np.int64)
    maps = [
        kernel_of(CONV),
        kernel_of(Convolution(other, (6, 6), WINDOW)),
        replace(kernel_of(CONV), entries=Interval(np.minimum(CONV.kernel, other), other)),
        kernel_of(Convolution(CONV.kernel, (7, 6), WINDOW)),
        kernel_of(Convolution(CONV.kernel, (6, 6), replace(WINDOW, strides=(1, 2)))),
        kernel_of(Convolution(CONV.kernel, (6, 6), WINDOW, groups=2)),
        kernel_of(Convolution(CONV.kernel, (6, 6), WINDOW, moved=(line, line[::-1].copy()))),
    ]
    search = Counted()
    cache = eager(folder, search)
    for kernel in maps:
        for tier in ("quick", "fast"):
            cache(kernel, tier)
    assert search.calls == len(list(folder.iterdir())) == 2 * len(maps)
    assert cache.hits == 0


def test_what_is_found_fast_never_touches_the_disk(folder):
    ProposalCache(folder, slow_seconds=60.0)(kernel_of(CONV), "fast")
    assert not folder.exists()


def test_no_proposal_is_not_kept(folder):
    assert eager(folder, lambda kernel, tier: ())(kernel_of(CONV), "fast") == ()
    assert not folder.exists()


def test_a_private_directory_is_made(folder):
    eager(folder)(kernel_of(CONV), "fast")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry(folder).stat().st_mode) == 0o600


@given(data=st.data())
def test_every_damaged_entry_is_searched_again(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    true = eager(folder)(kernel_of(CONV), "quick")
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
    search = Counted()
    again = eager(folder, search)
    assert again(kernel_of(CONV), "quick") == true
    assert (search.calls, again.hits) == (1, 0)
    assert file.read_bytes() == whole


HOSTILE = [
    b"",
    b"null",
    b"[" * 4000,
    b'{"claims":' + b"[" * 1500 + b"]" * 1500 + b"}",
    b'{"claims": 7}',
    b'{"claims": []}',
    b'{"claims": [["0x1p+0"]]}',
    b'{"claims": [["nan", "dense", [], []]]}',
    b'{"claims": [["-0x1p+0", "dense", [], []]]}',
    b'{"claims": [["0x1p+99999", "dense", [], []]]}',
    b'{"claims": [[1.0, "dense", [], []]]}',
    b'{"claims": [["0x1p+0", "torus", ["x"], [1e999]]]}',
    b'{"claims": [["0x1p+0", "torus", [0], [' + b"9" * 3000 + b"]]]}",
    b"\xff\xfe" * 100,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_entries_are_searched_again(folder, text):
    true = eager(folder)(kernel_of(CONV), "fast")
    for content in (text, text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n"):
        entry(folder).write_bytes(content)
        assert eager(folder)(kernel_of(CONV), "fast") == true


@pytest.fixture(name="program", scope="module")
def _program():
    model = read_model(MODEL)
    return lower(model, model.outputs[-1])


FORGED = {
    "smaller": lambda claim: replace(claim, bound=claim.bound * 0.9),
    "hardly smaller": lambda claim: replace(claim, bound=claim.bound * (1.0 - 1e-6)),
    "zero": lambda claim: replace(claim, bound=0.0),
    "subnormal": lambda claim: replace(claim, bound=5e-324),
    "an unknown method": lambda claim: replace(claim, bound=1e-3, method="trust me"),
    "no torus": lambda claim: NormClaim(claim.bound * 0.5, "torus", (7, -1), (0, 10**30)),
    "a smaller torus": lambda claim: NormClaim(claim.bound * 0.5, "torus", (0, 0), (2, 2)),
    "another torus": lambda claim: NormClaim(1e-3, "torus", (0, 0), (40, 40)),
}


@pytest.mark.parametrize("kind", FORGED)
def test_forged_entries_make_no_bound_smaller(folder, program, kind):
    """Well-formed, under the right key, with the right checksum, by somebody who may write."""
    plain = find_norms(program, POINT, "fast", lambda _: None)
    forger = eager(folder, lambda kernel, tier: tuple(map(FORGED[kind], proposals(kernel, tier))))
    find_norms(program, POINT, "fast", lambda _: None, forger)
    cache = eager(folder)
    found = find_norms(program, POINT, "fast", lambda _: None, cache)
    assert cache.hits == len(plain.steps) + len(plain.runs)
    assert list(found.steps) == list(plain.steps)
    for value, claim in found.steps.items():
        truth = plain.steps[value].bound / (1.0 + 4e-8)
        assert truth * (1.0 - 1e-9) <= claim.bound <= truth * 1.01
    assert [run.values for run in found.runs] == [run.values for run in plain.runs]
    for run, true in zip(found.runs, plain.runs, strict=True):
        assert run.norm.bound >= true.norm.bound / (1.0 + 1e-7)


def test_an_entry_under_another_key_is_not_believed(folder):
    small = replace(CONV, kernel=CONV.kernel * 1e-3)
    eager(folder)(kernel_of(small), "fast")
    forged = entry(folder).read_bytes()
    entry(folder).unlink()
    true = eager(folder)(kernel_of(CONV), "fast")
    entry(folder).write_bytes(forged)
    assert eager(folder)(kernel_of(CONV), "fast") == true


def test_entries_are_json_with_a_checksum(folder):
    eager(folder)(kernel_of(CONV), "fast")
    line, checksum, rest = entry(folder).read_bytes().split(b"\n")
    assert rest == b""
    assert hashlib.sha256(line).hexdigest().encode() == checksum
    assert json.loads(line)["key"] == entry(folder).stem


def test_an_entry_that_is_a_directory_is_harmless(folder):
    true = eager(folder)(kernel_of(CONV), "fast")
    file = entry(folder)
    file.unlink()
    file.mkdir()
    assert eager(folder)(kernel_of(CONV), "fast") == true


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_directory_others_can_write_is_not_used(folder, mode):
    eager(folder)(kernel_of(CONV), "fast")
    entry(folder).write_text("untouched")
    folder.chmod(mode)
    search = Counted()
    cache = eager(folder, search)
    cache(kernel_of(CONV), "fast")
    assert (search.calls, cache.hits) == (1, 0)
    assert "others may write" in cache.complaint
    assert entry(folder).read_text() == "untouched"


def test_a_directory_of_somebody_else_is_not_used(folder, monkeypatch):
    eager(folder)(kernel_of(CONV), "fast")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    cache = eager(folder)
    cache(kernel_of(CONV), "fast")
    assert (cache.hits, cache.complaint) == (0, "it belongs to another user")


def test_a_file_in_place_of_the_directory_is_harmless(folder):
    folder.write_text("not a directory")
    cache = eager(folder)
    assert cache(kernel_of(CONV), "fast") == proposals(kernel_of(CONV), "fast")
    assert cache.complaint == "it is not a directory"


def test_a_directory_that_cannot_be_written_is_harmless(folder, monkeypatch):
    def denied(*args, **options):
        raise PermissionError

    folder.mkdir(mode=0o500)
    monkeypatch.setattr(tempfile, "mkstemp", denied)  # root may write anywhere
    assert eager(folder)(kernel_of(CONV), "fast") == proposals(kernel_of(CONV), "fast")
    assert list(folder.iterdir()) == []
    assert eager(Path("/proc/no/such"))(kernel_of(CONV), "fast")


def _ask(folder):
    return eager(folder)(kernel_of(CONV), "fast")


def test_processes_share_a_directory(folder):
    with ProcessPoolExecutor(2) as pool:
        answers = list(pool.map(_ask, [folder] * 8))
    assert all(answer == proposals(kernel_of(CONV), "fast") for answer in answers)
    assert entry(folder).suffix == ".norm"
