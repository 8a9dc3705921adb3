"""Approximate skipping of forwards."""
