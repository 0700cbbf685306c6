"""What a run measured: rows of requests, histograms, the summary of a point, the result of all points."""
