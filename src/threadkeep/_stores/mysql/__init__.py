"""Rows in a MySQL or MariaDB database, and its options (needs the extra `threadkeep[mysql]`)."""

from threadkeep._stores.options import ConnectionOptions


class MysqlOptions(ConnectionOptions, total=False):
    """Options of a MySQL or MariaDB database and its connections."""


OPTIONS = MysqlOptions
