"""The `paceline` command: processes, a local cluster, a client, the demo."""
