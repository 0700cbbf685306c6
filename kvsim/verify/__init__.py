"""Replay of recorded engine decisions."""
