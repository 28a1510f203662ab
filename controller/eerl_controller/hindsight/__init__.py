"""What a run saved, worked out in hindsight from its records alone: for the report and for the progress line."""
