"""One theme and one chart kit for every page: files that are joined into one closed HTML file."""
