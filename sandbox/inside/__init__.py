"""What runs inside a sandbox for its shell; it imports nothing but the standard library and itself."""
