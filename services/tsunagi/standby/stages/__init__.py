"""The stages of a replica (tsunagi.standby.replica). Each stage is a class of its own."""
