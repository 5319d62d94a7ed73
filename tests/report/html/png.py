"""A reader of the PNG files that browsers write: 8 bits per channel, not interlaced."""

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CHANNELS = {2: 3, 6: 4}


@dataclass(frozen=True, slots=True)
class Picture:
    pixels: NDArray[np.uint8]  # [height, width, 3]

    def part(self, left: float, top: float, width: float, height: float) -> NDArray[np.uint8]:
        """The pixels of a box."""
        rows = slice(max(round(top), 0), round(top + height))
        return self.pixels[rows, max(round(left), 0) : round(left + width)]


def read_png(file: Path) -> Picture:
    data = file.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    place, packed, header = 8, b"", b""
    while place < len(data):
        (size,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + size]
        header = body if kind == b"IHDR" else header
        packed += body if kind == b"IDAT" else b""
        place += 12 + size
    width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    assert (depth, interlaced) == (8, 0)
    channels = CHANNELS[color]
    raw = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    pixels = np.zeros((height, width * channels), np.uint8)
    above = np.zeros(width * channels, np.uint8)
    for y in range(height):
        above = pixels[y] = _unfiltered(int(raw[y, 0]), raw[y, 1:], above, channels)
    return Picture(pixels.reshape(height, width, channels)[:, :, :3])


def _unfiltered(
    kind: int, row: NDArray[np.uint8], above: NDArray[np.uint8], channels: int
) -> NDArray[np.uint8]:
    """One row; `above` is the finished row before it."""
    match kind:
        case 0:
            return row
        case 1:
            by_pixel = row.reshape(-1, channels)
            return np.cumsum(by_pixel, axis=0, dtype=np.uint8).reshape(-1)
        case 2:
            return row + above
    left = [0] * channels
    corner = [0] * channels
    found = bytearray()
    over = above.tolist()
    for i, value in enumerate(row.tolist()):
        c = i % channels
        up = over[i]
        guess = (left[c] + up) // 2 if kind == 3 else _paeth(left[c], up, corner[c])
        left[c], corner[c] = (value + guess) & 255, up
        found.append(left[c])
    return np.frombuffer(bytes(found), np.uint8)


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    distances = [abs(guess - left), abs(guess - up), abs(guess - corner)]
    return (left, up, corner)[distances.index(min(distances))]
