"""A small pipeline server with SGLang's outward surfaces, for the demo and tests. Nothing here measures; nothing of it is SGLang's code."""
