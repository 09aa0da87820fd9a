"""The exit codes of every command, and the user's mistakes that argparse cannot see."""

CLEAN, FINDINGS, USAGE = 0, 1, 2


class UsageError(Exception):
    """A command that cannot start as it was written; shown as one line, exit code 2."""
