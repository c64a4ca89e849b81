"""Difference coding of sufficient statistics: int8 or int16 changes with the rounding error kept.

Both ends hold the last reconstruction as reference. The site sends the rounded change against it,
one float32 scale a block, and moves its reference by what the server will reconstruct: what
rounding lost is part of the next change. A block is one array of one start.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from strategies.statistics import Floats

Codes = NDArray[np.int8] | NDArray[np.int16]

#: Largest code of each encoding; other encodings are plain floats and need no coder.
LIMITS = {"int8": 127, "int16": 32767}


class ChangeCoder:
    """One end of a difference-coded stream of blocks.

    Parameters
    ----------
    encoding : {"int8", "int16"}

    Attributes
    ----------
    round : int
        Round of the reference, -1 before the first.
    """

    def __init__(self, encoding: str) -> None:
        self.dtype = np.dtype(f"<{'i1' if encoding == 'int8' else 'i2'}")
        self.limit = LIMITS[encoding]
        self.round = -1
        self._reference: dict[int, list[Floats]] = {}

    def _references(self, starts: Sequence[int], blocks: Sequence[NDArray[np.generic]]) -> None:
        """Give every start a zero reference where it has none."""
        for i, start in enumerate(starts):
            if start not in self._reference:
                self._reference[start] = [np.zeros(b[i].shape) for b in blocks]

    def restart(self) -> None:
        """Forget the reference: the next message is coded against zero."""
        self.round = -1
        self._reference.clear()

    def encode(
        self, round_: int, starts: Sequence[int], blocks: Sequence[Floats]
    ) -> tuple[tuple[Codes, ...], NDArray[np.float32]]:
        """Code the change of each block since the reference and move the reference.

        Parameters
        ----------
        round_ : int
        starts : sequence of int
            Which starts the first axis of every block holds.
        blocks : sequence of ndarray of shape (R, ...)

        Returns
        -------
        codes : tuple of ndarray, same shapes, int8 or int16
        scales : ndarray of shape (R, number of blocks), float32
        """
        self._references(starts, blocks)
        scales = np.zeros((len(starts), len(blocks)), dtype=np.float32)
        codes = tuple(np.zeros(b.shape, dtype=self.dtype) for b in blocks)
        for i, start in enumerate(starts):
            for b, block in enumerate(blocks):
                change = block[i] - self._reference[start][b]
                scale = np.float32(np.max(np.abs(change), initial=0.0) / self.limit)
                if scale > 0 and np.isfinite(scale):
                    quotient = np.rint(change / np.float64(scale))
                    codes[b][i] = np.clip(quotient, -self.limit, self.limit).astype(self.dtype)
                    scales[i, b] = scale
        self.decode(round_, starts, codes, scales)
        return codes, scales

    def decode(
        self,
        round_: int,
        starts: Sequence[int],
        codes: Sequence[NDArray[np.generic]],
        scales: NDArray[np.float32],
    ) -> tuple[Floats, ...]:
        """Add the coded change to the reference and return the reconstruction of each block."""
        self._references(starts, codes)
        out = []
        for b, code in enumerate(codes):
            block = np.zeros(code.shape)
            for i, start in enumerate(starts):
                change = code[i].astype(np.float64) * np.float64(scales[i, b])
                self._reference[start][b] = self._reference[start][b] + change
                block[i] = self._reference[start][b]
            out.append(block)
        self.round = round_
        return tuple(out)
