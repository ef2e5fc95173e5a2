"""Math: problems with one answer, judged exactly or by math-verify."""
