"""Every form gives the examples that were written, in their order, a few at a time."""

import numpy as np
import pytest

from lipcert.data import source as sources
from lipcert.data.opening import open_source
from lipcert.data.source import Columns, Source
from lipcert.errors import NoVerdictError, UsageError
from lipcert.gradient_stats import examples
from lipcert.gradient_stats.examples import DataSet
from tests.data.written import OBJECTS, ROWS, SHAPE, STREAMS, X, Y, generated, npz

FORMS = ["npz", *OBJECTS, "function", "generator"]


def opened(form: str, folder) -> Source:
    given: object
    if form == "npz":
        given = npz(folder)
    elif form in OBJECTS:
        given = OBJECTS[form]()
    else:
        given = "tests.data.written:" + {"function": "made", "generator": "generated"}[form]
    return open_source(given, Columns())


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def data(form: str, tmp_path) -> DataSet:
    return DataSet(opened(form, tmp_path), SHAPE)


def test_the_count_is_known_unless_only_the_end_tells(form: str, data: DataSet) -> None:
    assert data.count == (None if form in STREAMS | {"generator"} else ROWS)


def test_all_of_it_in_order(data: DataSet) -> None:
    found = data.read(0, ROWS + 10)
    assert np.array_equal(found.x, X)
    assert np.array_equal(found.y, Y)
    assert found.x.dtype == X.dtype
    assert not len(data.read(ROWS, ROWS + 1))


def test_any_part_of_it_in_any_order(data: DataSet) -> None:
    for start, stop in [(0, 5), (5, 9), (9, 33), (2, 8), (40, 60), (29, 31), (30, 30), (52, 53)]:
        found = data.read(start, stop)
        assert np.array_equal(found.x, X[start:stop])
        assert np.array_equal(found.y, Y[start:stop])


def test_single_examples_by_their_numbers(data: DataSet) -> None:
    index = np.array([50, 3, 8, 3, 29, 30, 0, 52])
    if data.count is None:
        with pytest.raises(NoVerdictError, match="can only be read in order"):
            data.take(index)
        return
    found = data.take(index)
    assert np.array_equal(found.x, X[index])
    assert np.array_equal(found.y, Y[index])
    assert not len(data.take(index[:0]))


def test_the_identity_is_that_of_the_data(form: str, tmp_path) -> None:
    one, other = opened(form, tmp_path).identity(), opened(form, tmp_path).identity()
    assert one == other
    assert len(one.sha256) == 64
    assert one.of


def test_a_block_is_all_that_is_held(form: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_MOST_ROWS", 4)
    sizes = [len(x) for x, _ in opened(form, tmp_path).blocks()]
    assert sum(sizes) == ROWS
    assert max(sizes) <= (8 if form == "loader of an iterable" else 4)


def test_nothing_is_read_far_ahead_however_many_examples_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "_MOST_ROWS", 16)

    def most_ahead(count: int) -> int:
        made = done = worst = 0

        class Counted:
            def __iter__(self):
                nonlocal made, worst
                for number in range(count):
                    made += 1
                    worst = max(worst, made - done)
                    yield X[number % ROWS], Y[number % ROWS]

        data = DataSet(open_source(Counted(), Columns()), SHAPE)
        while some := len(data.read(done, done + 10)):
            done += some
        assert done == made == count
        return worst

    assert most_ahead(200) == most_ahead(5000) <= 16 + 10


def test_a_part_is_spread_over_all_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(examples, "_MOST_BYTES", 5 * 8 * 6)
    known = DataSet(open_source(npz(tmp_path), Columns()), SHAPE).some()
    assert np.array_equal(known.x, X[[0, 13, 26, 39, 52]])
    stream = open_source("tests.data.written:generated", Columns())
    assert np.array_equal(DataSet(stream, SHAPE).some().x, X[:5])


def test_no_examples_at_all_are_refused(tmp_path) -> None:
    np.savez(tmp_path / "none.npz", x=X[:0], y=np.zeros(0, np.int64))
    with pytest.raises(NoVerdictError, match=r"none\.npz holds no examples"):
        DataSet(open_source(tmp_path / "none.npz", Columns()), X.shape[1:]).some()


def test_a_generator_without_its_function_is_refused() -> None:
    with pytest.raises(UsageError, match="only once"):
        open_source(generated(), Columns())


def test_what_datasets_saves(tmp_path) -> None:
    """Shuffled, in shards, with a declared type of array; skipped where it is not installed."""
    datasets = pytest.importorskip("datasets")
    kinds = {"image": datasets.Array2D(SHAPE, "float32"), "label": datasets.ClassLabel(10)}
    whole = datasets.Dataset.from_dict(
        {"image": list(X), "label": Y}, features=datasets.Features(kinds)
    )
    mixed = whole.select(order := np.random.default_rng(0).permutation(ROWS))
    mixed.save_to_disk(tmp_path / "saved", num_shards=3)
    saved = datasets.load_from_disk(tmp_path / "saved").with_format("numpy")
    for given in (saved, mixed.with_format("torch"), mixed.to_iterable_dataset()):
        found = DataSet(open_source(given, Columns()), SHAPE).read(0, 100)
        assert np.array_equal(found.x, X[order])
        assert np.array_equal(found.y, Y[order])
