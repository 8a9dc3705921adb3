"""One request from words to a clip: build the components, plan, encode, denoise step by step, decode."""
