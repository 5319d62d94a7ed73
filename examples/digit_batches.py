"""Write the digits of scikit-learn as batches for `lipcert audit`.

python examples/digit_batches.py digits.npz: images of shape (1, 8, 8), scaled down to norm 1 where
they are longer, as a private training run with `--input-norm 1` would feed them.
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.datasets import load_digits


def main(path: str) -> None:
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16.0).astype(np.float32)
    norms = np.linalg.norm(images, axis=1, keepdims=True)
    images /= np.maximum(norms, 1.0)
    np.savez(path, x=images.reshape(-1, 1, 8, 8), y=labels)
    print(f"{path}: {len(labels)} examples")


if __name__ == "__main__":
    main(sys.argv[1])
