"""What runs as PID 1 in a sandbox that another program made: standard library only, and the native engine's inside."""
