"""Edges of the log-spaced histograms that kernels fill: bin i covers [FIRST_EDGE_S * RATIO**i, FIRST_EDGE_S * RATIO**(i + 1)) seconds.

The first and the last bin are open. One percent a bin: a percentile read from it is right to half a percent.
"""

import math

FIRST_EDGE_S = 1e-5
RATIO = 1.01
LOG_RATIO = math.log(RATIO)
N_BINS = 1900
