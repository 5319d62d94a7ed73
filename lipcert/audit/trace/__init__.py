"""The trace of a training run: what its steps used, did and released, as files.

    manifest.json        what is recorded, and what the run declares of itself
    steps-<rank>.jsonl   one line a step, chained by digests that begin at the manifest's
    blobs/<sha256>       tensors in the format safetensors, named by their digest

and beside the folder, where examples are named and not stored, their key: `FOLDER.key`.

Writer: `writing.TraceWriter` (and `lipcert.Recorder` on top of it). Reader: `reading.read_trace`.
Nothing here loads torch, and nothing is ever unpickled.
"""
