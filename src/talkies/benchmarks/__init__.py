"""What ``talkies bench`` measures: one forward, its kernels, a whole clip. Comparisons with peers are in ``bench/``."""
