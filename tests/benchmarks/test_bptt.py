from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "bptt.py"


@pytest.mark.slow
def test_a_long_gradient_of_many_rollouts_needs_well_under_a_gibibyte(script):
    gradient, needed = script(PATH).ours(400, 30)
    assert needed < 2**29
    assert all(np.isfinite(leaf).all() for leaf in gradient())
