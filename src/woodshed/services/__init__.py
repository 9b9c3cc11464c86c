"""What a user can ask for, once."""
