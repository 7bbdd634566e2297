"""Check the installation, the servers, and what the source silently loses."""
