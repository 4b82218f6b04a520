"""What can be asked of rows through an engine; blocks write the answers into certificates."""
