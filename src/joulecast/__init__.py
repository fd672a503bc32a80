"""Joulecast."""
