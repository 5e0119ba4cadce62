"""Torch profiler traces: reading, launches, steps and bubbles, without a server."""
