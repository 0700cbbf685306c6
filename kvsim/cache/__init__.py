"""What is kept: pools of cache units, eviction policies, and the connectors that move units between tiers."""
