"""Methods of `saver.threads`."""
