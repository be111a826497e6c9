"""Text for a terminal and pages of HTML, whatever they report."""
