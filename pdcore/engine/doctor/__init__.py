"""What an engine needs of its machine, looked at before it is started."""
