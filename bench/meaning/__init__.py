"""Does a clip show and sound like its prompt? ``python -m bench.meaning``."""
