"""The engine as values: its life as a table, its kinds, what its answers prove. No process here."""
