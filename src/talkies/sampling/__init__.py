"""From noise to data: schedules, Euler steps, anchors and seeds."""
