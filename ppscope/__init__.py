"""ppscope: a live terminal profiler for pipeline-parallel LLM serving."""

__version__ = "0.1.0"
