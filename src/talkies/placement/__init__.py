"""Where weights live and who computes what: streaming, shards, graphs, and the planner that chooses."""
