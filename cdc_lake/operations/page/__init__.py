"""The lake as one HTML page: `facts` reads it, `series` and `charts` draw it, `render` writes the page."""
