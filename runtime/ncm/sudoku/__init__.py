"""Sudoku as a task for the generator: exact solver, seeded puzzle maker, structural checker, puzzle files."""
