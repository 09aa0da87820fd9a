"""The exit codes of every command, and the user's mistakes that argparse cannot see."""

CLEAN, FINDINGS, USAGE = 0, 1, 2
# As shells report a process that SIGINT or SIGPIPE ended.
INTERRUPTED, UNREAD = 130, 141


class UsageError(Exception):
    """A command that cannot start as it was written; exit code 2. Its first line says why."""
