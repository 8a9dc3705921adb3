"""The DiT of t2va and fl2va: text, data, batches, training, samples and their figures."""
