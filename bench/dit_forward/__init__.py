"""A forward against its floor and diffusers: ``python -m bench.dit_forward``; one file a part."""
