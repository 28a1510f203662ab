"""eerl: energy-efficient RL post-training on Slurm. ``from eerl_launch import mark`` is all a trainer needs."""

__version__ = "0.1.0"
