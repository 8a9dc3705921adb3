"""Looks at a clip and listens to it: what it shows, how it moves, what sounds and when."""
