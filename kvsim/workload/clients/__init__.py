"""Clients: who sends requests, and when."""
