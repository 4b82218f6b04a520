"""Local web applications and logs: the review workbench, the decision server, the watch."""
