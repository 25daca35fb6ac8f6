"""Running the services as processes of this machine: start, find, signal, show."""
