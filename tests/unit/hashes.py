"""What models are known by in tests: any SHA-256 would do."""

SHA, OTHER_SHA, NOBODYS_SHA = "aa" * 32, "bb" * 32, "cc" * 32
