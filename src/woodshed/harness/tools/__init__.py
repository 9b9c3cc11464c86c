"""What the loop's model may do."""
