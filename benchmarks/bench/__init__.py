"""The service under load, its engine alone, and other systems, on the same clips in the same run."""
