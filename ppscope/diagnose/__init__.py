"""What the evidence says: pure functions over what was recorded."""
