"""What starts and supervises the processes of a cluster on one machine."""
