"""MedAgentBench: its official tasks with their official verdicts, and tasks of our own after its ten classes."""
