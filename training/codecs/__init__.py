"""The two VAEs of the embedded checkpoint and how the video one is trained."""
