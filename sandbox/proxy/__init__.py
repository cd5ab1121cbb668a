"""The process that stands between a sandbox and the network; it imports the standard library and itself."""
