"""Pictures: the margin curve, the Displays of the library, and the SVG of report and workbench."""
