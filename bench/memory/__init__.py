"""Streaming, plans, budgets and two ranks: ``python -m bench.memory``; one file a part."""
