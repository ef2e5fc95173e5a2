"""The dashboard's server: the JSON that the pages show, their files, and the few actions."""
