"""What a core is worth: Tsunagi and Kafka Streams drain the same log, and their CPU seconds are compared."""
