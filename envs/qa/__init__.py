"""QA: multiple choice and short answers over many domains."""
