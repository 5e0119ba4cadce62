"""Can I attach here? Every precondition as a pure check over gathered facts."""
