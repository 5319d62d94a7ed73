"""The trace of a training run: what its steps used, did and released, as files.

    manifest.json        what is recorded, and what the run declares about itself
    steps-<rank>.jsonl   one line a step, chained by digests that begin with the manifest's
    blobs/<sha256>       tensors, named by their digest

If examples are named and not stored, their key lies beside the folder, in `FOLDER.key`.

`writing.TraceWriter` (and `lipcert.Recorder` on top of it) writes traces, `reading.read_trace`
reads them. Nothing here loads torch, and nothing is ever unpickled.
"""
