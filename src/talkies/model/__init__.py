"""The packed DiT: its config, row layout, modulation, forward and checkpoint."""
