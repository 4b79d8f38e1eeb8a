"""The store contract on one Redis, and the connection that journal and rooms use too."""
