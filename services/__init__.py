"""The processes of a cluster, and what they share."""
