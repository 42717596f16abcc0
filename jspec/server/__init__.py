"""What stands between the engine and its readers: text, streams, HTTP."""
