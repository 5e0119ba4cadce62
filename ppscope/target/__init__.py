"""From any pid to the server it belongs to: stages, ranks, GPUs, settings."""
