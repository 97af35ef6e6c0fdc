"""What every other package stands on: dimensions, units, errors, random numbers."""
