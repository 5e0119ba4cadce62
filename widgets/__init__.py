"""Terminal widgets: each receives values and draws them, and fetches nothing."""
