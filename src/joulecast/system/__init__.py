"""What everything else rests on: errors, units, files, printing, plug-ins."""
