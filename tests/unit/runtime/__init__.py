"""Tests of services/tsunagi/runtime."""
