"""Programs that do the same work with other libraries; they import nothing of this project."""
