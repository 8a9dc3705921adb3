"""Start lines of other servers: ``vllm serve --omni`` and ``sglang serve`` start the same service here, or say why not.

A flag is taken, or it is here because its value changes nothing (and a note says so), or it is refused by name with the
reason. Nothing is dropped in silence.
"""
