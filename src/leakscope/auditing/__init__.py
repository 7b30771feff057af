"""The audit: what a set-up gives away, in one answer."""

from leakscope.auditing.prescreen import Finding, Prescreen, prescreen

__all__ = ["Finding", "Prescreen", "prescreen"]
