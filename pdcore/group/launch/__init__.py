"""Starting members and keeping them running: on one machine here."""
