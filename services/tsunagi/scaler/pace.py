"""How often the scaler looks at its slots.

What a look costs grows with the number of slots. So the time between two looks grows with it too, and looks take the
same share of a core at any size. With few slots the scaler looks without a rest, and measures once a second.
"""

LOOK_S = 50e-6
"""Time between two looks at all workers and slots, in seconds for each slot. A look takes some 6 us for each."""
FIGURES_S = 200e-6
"""Time between two measurements of load, and between two updates of metrics, in seconds for each slot. They take some
25 us together."""


def between_looks(slots: int, cells: int) -> float:
    """Return how long to wait between two looks, in seconds: a second at 20,000 slots, not at all with one cell."""
    return LOOK_S * slots if cells > 1 else 0.0


def between_figures(slots: int) -> float:
    """Return how long to wait between two measurements, in seconds: one for up to 5,000 slots, four at 20,000."""
    return max(1.0, FIGURES_S * slots)
