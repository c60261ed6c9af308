"""Drop-in replacements for other packages' entry points, run and recorded by this one."""
