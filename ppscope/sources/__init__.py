"""Where facts come from: each source fails alone."""
