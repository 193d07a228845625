"""Eight-bit inference, written from the specification of the arithmetic alone: numpy, whole
matrices, no cycles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def inference(weights: Sequence[np.ndarray], shifts: Sequence[int], query: np.ndarray) -> list[int]:
    """Sums of the last layer: of each product of magnitudes the quotient by 256, with the weight's
    sign.
    """
    values = query.astype(np.int64)
    sums = values
    for number, matrix in enumerate(weights):
        signed = matrix.astype(np.int64)
        sums = (np.sign(signed) * np.floor_divide(np.abs(signed) * values[np.newaxis, :], 256)).sum(
            axis=1
        )
        if number + 1 < len(weights):
            values = np.clip(np.floor_divide(sums, 2 ** shifts[number]), 0, 255)
    return [int(total) for total in sums]
