"""Fused operations, each beside its reference."""
