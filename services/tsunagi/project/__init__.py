"""Makes a project folder for a fleet that is there already, from what its sensors send (`tsunagi init`)."""
