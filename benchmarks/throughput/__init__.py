"""How fast samples are made and trained on, asynchronously against synchronously."""
