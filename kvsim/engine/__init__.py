"""One serving engine: scheduler, step time, memory, and the node that runs them."""
