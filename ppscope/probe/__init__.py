"""Code that runs inside SGLang: standard library only, and it may never break the server."""
