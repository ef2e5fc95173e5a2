"""The built-in asynchronous trainer for language-model agents."""
