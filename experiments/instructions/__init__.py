"""Pictures: classes, captions, questions, and what attention looks at."""
