"""Acts: trio tasks, processes, sockets and files that carry out what ``core`` decides."""
