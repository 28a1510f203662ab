"""The tables that show what clocks save: fixed-clock sweeps, run against run, and how well work predicts them."""
