"""Paceline on the Redis that others run: clusters, sentinels, TLS; real servers on loopback."""
