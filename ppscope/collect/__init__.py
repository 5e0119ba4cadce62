"""The node side: owns the sources, obeys commands, writes one stream of records."""
