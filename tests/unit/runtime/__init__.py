"""Tests of services/runtime."""
