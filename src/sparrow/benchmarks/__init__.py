"""What things cost here: operators, decode steps and memory, measured or worked out. One suite each, one file each."""
