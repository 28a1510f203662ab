"""Profiles of runs from their ledgers: phases, responses and who waits for them, rewards, runs side by side."""
