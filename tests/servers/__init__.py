"""Real servers for the tests: each binds loopback on a free port and is a context manager, in pytest and outside it.

Outside pytest: `with PostgresServer() as postgres: psycopg.connect(postgres.create_database())`.
"""
