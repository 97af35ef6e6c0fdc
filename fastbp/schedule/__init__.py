"""The decision (plan), when everything happens (schedule) and what that needs (simulate)."""
