"""Trains the embedded checkpoint `h3-tiny` from nothing. Not part of the wheel; see README.md beside this file."""
