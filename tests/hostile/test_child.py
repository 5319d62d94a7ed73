"""The child process: answers, faults, crashes and limits, forked and in a fresh interpreter."""

import threading

import pytest

from lipcert.errors import ModelFileError
from lipcert.importer import child, load
from lipcert.importer.child import Budget, ChildError, run_in_child
from lipcert.importer.load import load_model
from tests.hostile.kinds import WEIGHT, matmul
from tests.hostile.work import chatter, crash, devour, echo, fail, sleep, spin, vanish

BUDGET = Budget(256 << 20, 1)


@pytest.fixture(params=["forked", "spawned"])
def way(request, monkeypatch):
    """Fork, or start a fresh interpreter because another thread runs."""
    if request.param == "forked":
        if threading.active_count() > 1:
            pytest.skip("other threads run in this process")
        monkeypatch.setattr(child, "_spawned", None)
        yield
        return
    monkeypatch.setattr(child, "_forked", None)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.mark.usefixtures("way")
class TestBothWays:
    def test_answer(self):
        assert run_in_child(echo, "ü\n\x00", BUDGET, "m") == "ü\n\x00ü\n\x00"

    def test_long_answer(self):
        text = "x" * 200_000
        assert run_in_child(echo, text, BUDGET, "m") == text * 2

    def test_fault(self):
        with pytest.raises(ChildError, match="KeyError"):
            run_in_child(fail, "k", BUDGET, "m")
        with pytest.raises(ChildError, match="exit status 7"):
            run_in_child(vanish, "k", BUDGET, "m")

    def test_memory(self):
        with pytest.raises(ModelFileError, match=r"\[LC002\] 'm' needs more than 256 MiB"):
            run_in_child(devour, "", BUDGET, "m")

    @pytest.mark.sample(1)
    def test_processor_time(self):
        with pytest.raises(ModelFileError, match=r"\[LC002\] 'm' needs more than 1 seconds of"):
            run_in_child(spin, "", BUDGET, "m")

    def test_crash(self):
        with pytest.raises(ModelFileError, match=r"\[LC001\] 'm' crashes its reader \(SIGSEGV"):
            run_in_child(crash, "", BUDGET, "m")

    def test_nothing_is_printed(self, capfd):
        assert run_in_child(chatter, "a", BUDGET, "m") == "a"
        assert capfd.readouterr() == ("", "")

    def test_wall_clock(self, monkeypatch):
        monkeypatch.setattr(Budget, "patience", 0.3)
        with pytest.raises(ModelFileError, match=r"\[LC002\] 'm' needs more than 0 seconds"):
            run_in_child(sleep, "", BUDGET, "m")

    def test_a_model_is_imported(self, tmp_path):
        path = tmp_path / "model.onnx"
        path.write_bytes(matmul().SerializeToString())
        assert load_model(path).verification == load_model(path, trusted=True).verification

    def test_a_fault_of_the_importer_is_not_hidden(self, tmp_path):
        with pytest.raises(ChildError, match="JSONDecodeError"):
            run_in_child(load.rehearse, "no JSON", BUDGET, "m")


def test_a_file_that_changes_after_the_rehearsal(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_bytes(matmul().SerializeToString())
    rehearsed = load.run_in_child

    def swap(*words):
        answer = rehearsed(*words)
        path.write_bytes(matmul(-WEIGHT).SerializeToString())
        return answer

    monkeypatch.setattr(load, "run_in_child", swap)
    with pytest.raises(ModelFileError, match="changed while it was read"):
        load_model(path)
