"""Tests of the rules of the fold, without Spark."""
