"""What estimates are good for, one file each; they are given rigs and profiles."""
