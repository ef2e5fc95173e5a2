"""Environment speed and behaviour, side by side with public packages: ``rollcage bench envs``."""
