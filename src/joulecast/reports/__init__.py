"""Report results of commands that are not features of their own yet."""
