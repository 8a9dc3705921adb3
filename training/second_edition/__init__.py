"""The embedded checkpoint's second edition: plain English, four times the pixels. Not trained yet: see README.md."""
