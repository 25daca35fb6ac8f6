"""The stages of a replica (tsunagi.standby.replica), one object each."""
