"""The shell: queues, pages and the loop that dispatches rounds."""
