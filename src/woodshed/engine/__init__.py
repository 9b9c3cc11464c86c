"""Durable execution of attempts."""
