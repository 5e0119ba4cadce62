"""Recordings and HTML snapshots: written, read back, compared, redacted."""
