"""Other platforms: one module for each, the only one that imports the platform's library."""
