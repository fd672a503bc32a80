"""Offer the console that prints text literally."""

from joulecast.views.terminal import LiteralConsole as LiteralConsole
