"""One script per claim. Each runs ours and the peer in one process, checks the output, then reports a speed."""
