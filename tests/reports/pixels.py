"""Find the pixels of one colour in a picture."""

import numpy as np


def places(image, colour):
    """Return the columns and the rows of all pixels of a colour."""
    rows, columns = np.nonzero((np.asarray(image) == colour).all(-1))
    return columns, rows


def box(image, colour):
    """Return the smallest box around all pixels of a colour: left, top, right, bottom."""
    columns, rows = places(image, colour)
    assert len(columns), f"nothing is drawn in {colour}"
    return int(columns.min()), int(rows.min()), int(columns.max()), int(rows.max())


def curve(image, colour):
    """Return the middle row of a curve in each column that it crosses, from left to right."""
    columns, rows = places(image, colour)
    return {int(column): float(np.mean(rows[columns == column])) for column in np.unique(columns)}
