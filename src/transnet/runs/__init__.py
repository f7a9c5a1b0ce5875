"""A run: its settings, its folder and what it leaves on disk."""
