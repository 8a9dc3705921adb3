"""The ref2va partition: references, their prompts and data, fine-tuning and figures."""
