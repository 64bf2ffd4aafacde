"""The embedded data set: dates, times, numbers, amounts and quantities in words."""
